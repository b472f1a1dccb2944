package symmem

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"symmem/driver"
)

// valueReport describes a rank's call that compares a value or a step with the other ranks. If the
// calls differ, the ranks exchange their reports. The fields are those of Side, which describes a
// call in a DivergenceError.
type valueReport struct {
	Event  string   `json:"event"`  // the call and its value
	Site   string   `json:"site"`   // file and line of the call
	Before []string `json:"before"` // earlier calls, the latest first
}

const (
	maxValueReport = 4096 // bytes of an encoded report
	maxValueSite   = 512  // bytes of Event, and bytes of Site
	maxSides       = 16   // sides of a DivergenceError
)

// failInvalidData makes the group fail because a rank has sent invalid data. It returns the cause
// that the ranks agree on.
func (v *values) failInvalidData(name *valueName, err error) error {
	err = fmt.Errorf("value %d of group %s: %w", name.calls, v.id, err)
	v.comm.Abort(err)
	return v.life.awaitFault(err)
}

// explainDifference returns a DivergenceError for calls that differ between the ranks. It
// exchanges reports, so all ranks must call it. The caller must hold name.mu.
func (v *values) explainDifference(ctx context.Context, name *valueName, c *valueCall) error {
	site := c.site
	if site == 0 { // was not recorded
		site = v.rt.sites.callerSite()
	}

	words := slices.Clone(name.gathered) // exchangeReports overwrites name.gathered
	reports, err := v.exchangeReports(ctx, name, valueReport{
		Event: c.event().String(), Site: v.rt.sites.text(site), Before: v.latestCalls(),
	})
	if err != nil {
		return err
	}

	description := fmt.Sprintf("value %q, call %d", c.name, name.calls)
	if c.operation == ValueStep {
		description = fmt.Sprintf("step %d", name.calls)
	}

	return v.newDivergenceError(description, words, reports)
}

// encode returns the report as JSON of at most maxValueReport bytes. It shortens Event and Site,
// and drops the oldest calls in Before while the JSON is too long. If even the JSON without Before
// is too long, encode returns nil.
func (r valueReport) encode() []byte {
	r.Event = r.Event[:min(len(r.Event), maxValueSite)]
	r.Site = r.Site[max(0, len(r.Site)-maxValueSite):] // keep the file name and line at the end
	for {
		encoded, _ := json.Marshal(r) // cannot fail: it contains only strings
		if len(encoded) <= maxValueReport {
			return encoded
		}

		if len(r.Before) == 0 {
			return nil
		}

		r.Before = r.Before[:len(r.Before)-1] // the oldest is the last
	}
}

// decodeValueReport decodes the report of another rank. If it is invalid, the result is empty.
func decodeValueReport(encoded []byte) (r valueReport) {
	if json.Unmarshal(encoded, &r) != nil {
		return valueReport{}
	}

	r.Event = replaceUnprintable(r.Event)
	r.Site = replaceUnprintable(r.Site)
	r.Before = r.Before[:min(len(r.Before), maxLatestCalls)]
	for i := range r.Before {
		r.Before[i] = replaceUnprintable(r.Before[i])
	}

	return r
}

// replaceUnprintable replaces characters that a terminal cannot display.
func replaceUnprintable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}

		return r
	}, text)
}

// exchangeReports returns the reports of all ranks. Each Gather of the group exchanges only a few
// words per rank. The ranks therefore first exchange the sizes of their encoded reports. Then they
// repeatedly exchange one piece of each report, until all reports are complete. The caller must
// hold name.mu.
func (v *values) exchangeReports(
	ctx context.Context, name *valueName, own valueReport,
) ([]valueReport, error) {
	encoded := own.encode()
	sizes := make([]uint64, len(name.gathered))
	encodedReports := make([][]byte, len(name.gathered))
	gather := func(own driver.Words) error { // stores the words of all ranks in name.gathered
		err := name.gather.Gather(ctx, own, name.gathered)
		return v.life.awaitFault(err)
	}
	header := driver.Words{uint64(valueReports), uint64(len(encoded))}
	if err := gather(header); err != nil {
		return nil, err
	}

	for rank, words := range name.gathered {
		if ValueOperation(words[0]) != valueReports || words[1] > maxValueReport {
			err := fmt.Errorf("rank %d of the group sent no report", rank)
			return nil, v.failInvalidData(name, err)
		}

		sizes[rank] = words[1]
	}

	const pieceBytes = uint64(len(driver.Words{}) * 8)
	for offset := uint64(0); offset < slices.Max(sizes); offset += pieceBytes {
		var ownWords driver.Words
		var piece [pieceBytes]byte // zeros after the end of encoded
		copy(piece[:], encoded[min(offset, uint64(len(encoded))):])
		for i := range ownWords {
			ownWords[i] = binary.LittleEndian.Uint64(piece[8*i:])
		}

		if err := gather(ownWords); err != nil {
			return nil, err
		}

		for rank, words := range name.gathered {
			for _, word := range words {
				encodedReports[rank] = binary.LittleEndian.AppendUint64(encodedReports[rank], word)
			}
		}
	}

	reports := make([]valueReport, len(encodedReports))
	for rank, padded := range encodedReports {
		size := min(sizes[rank], uint64(len(padded)))
		reports[rank] = decodeValueReport(padded[:size])
	}

	return reports, nil
}

// newDivergenceError returns an error with one Side for all ranks that have the same report.
// wordsByRank describes the call of each rank in a few words, and reports describes it in full.
// Both are indexed by group rank.
func (v *values) newDivergenceError(
	description string, wordsByRank []driver.Words, reports []valueReport,
) *DivergenceError {
	majority, hasMajority := majorityWords(wordsByRank)
	divergence := &DivergenceError{
		Group: v.id, Members: slices.Clone(v.ranks), Kind: DivergedValue, Why: "unknown",
		Deviant: []int{},
	}
	for groupRank, words := range wordsByRank {
		worldRank, report := v.ranks[groupRank], reports[groupRank]
		side := Side{Event: eventOf(words).String(), Site: report.Site, Before: report.Before}
		if ValueOperation(words[0]).hasText() { // the words contain only a hash of the text
			side.Event = report.Event
		}

		sameSide := slices.IndexFunc(divergence.Sides, func(s Side) bool {
			return s.Event == side.Event && s.Site == side.Site && slices.Equal(s.Before, side.Before)
		})
		switch {
		case sameSide >= 0:
			ranks := &divergence.Sides[sameSide].Ranks
			*ranks = append(*ranks, worldRank)
		case len(divergence.Sides) == maxSides:
			divergence.Others = append(divergence.Others, worldRank)
		default:
			side.Ranks = []int{worldRank}
			divergence.Sides = append(divergence.Sides, side)
		}

		if hasMajority && words != majority {
			divergence.Deviant = append(divergence.Deviant, worldRank)
		}
	}

	for i := range divergence.Sides {
		slices.Sort(divergence.Sides[i].Ranks)
	}

	slices.Sort(divergence.Others)
	slices.Sort(divergence.Deviant)
	slices.SortFunc(divergence.Sides, func(a, b Side) int {
		return cmp.Compare(a.Ranks[0], b.Ranks[0])
	})
	sides := v.describeSides(divergence)
	divergence.Message = fmt.Sprintf("group %s: ranks differ in %s: %s", v.id, description, sides)
	return divergence
}

// majorityWords returns the words that more than half of the ranks sent, if there is a majority.
func majorityWords(wordsByRank []driver.Words) (majority driver.Words, hasMajority bool) {
	counts := map[driver.Words]int{}
	for _, words := range wordsByRank {
		counts[words]++
		if 2*counts[words] > len(wordsByRank) {
			return words, true
		}
	}

	return driver.Words{}, false
}

// describeSides lists which ranks have which call, such as "ranks 0-2 have ... at file.go:7; rank 3
// has ...".
func (v *values) describeSides(divergence *DivergenceError) string {
	var texts []string
	for _, s := range divergence.Sides {
		verb := "has"
		if len(s.Ranks) > 1 {
			verb = "have"
		}

		text := fmt.Sprintf("%s %s %s", driver.RanksOf(s.Ranks, v.ranks), verb, s.Event)
		if s.Site != "" {
			text += " at " + s.Site
		}

		texts = append(texts, text)
	}

	if len(divergence.Others) > 0 {
		texts = append(texts, driver.RanksOf(divergence.Others, v.ranks)+" differ, too")
	}

	return strings.Join(texts, "; ")
}
