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

// valueReport describes a rank's call that compares a value or a step. If the calls differ, the
// ranks exchange their reports. The fields are those of Side.
type valueReport struct {
	Event  string   `json:"event"`
	Site   string   `json:"site"`
	Before []string `json:"before"`
}

const (
	maxValueReport = 4096 // bytes of an encoded report
	maxValueSite   = 512  // bytes of Event and of Site
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
	if site == 0 {
		site = v.rt.sites.callerSite()
	}
	words := slices.Clone(name.gathered)
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
		r.Before = r.Before[:len(r.Before)-1]
	}
}

// decodeValueReport decodes the report of another rank. If it is invalid, the result is empty.
func decodeValueReport(encoded []byte) (r valueReport) {
	if json.Unmarshal(encoded, &r) != nil {
		return valueReport{}
	}
	r.Event, r.Site = replaceUnprintable(r.Event), replaceUnprintable(r.Site)
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

// exchangeReports returns the reports of all ranks. The ranks first exchange the sizes of their
// encoded reports. Then they repeatedly exchange one piece of each report, until all reports are
// complete. The caller must hold name.mu.
func (v *values) exchangeReports(
	ctx context.Context, name *valueName, own valueReport,
) ([]valueReport, error) {
	encoded := own.encode()
	sizes := make([]uint64, len(name.gathered))
	encodedReports := make([][]byte, len(name.gathered))
	gather := func(w driver.Words) error {
		if err := name.gather.Gather(ctx, w, name.gathered); err != nil {
			return v.life.awaitFault(err)
		}
		return nil
	}
	if err := gather(driver.Words{uint64(valueReports), uint64(len(encoded))}); err != nil {
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
		var words driver.Words
		var bytes [pieceBytes]byte
		copy(bytes[:], encoded[min(offset, uint64(len(encoded))):])
		for i := range words {
			words[i] = binary.LittleEndian.Uint64(bytes[8*i:])
		}
		if err := gather(words); err != nil {
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
		reports[rank] = decodeValueReport(padded[:min(sizes[rank], uint64(len(padded)))])
	}
	return reports, nil
}

// newDivergenceError returns an error with one Side for all ranks that have the same report.
func (v *values) newDivergenceError(
	description string, wordsByRank []driver.Words, reports []valueReport,
) *DivergenceError {
	divergence := &DivergenceError{
		Group: v.id, Members: slices.Clone(v.ranks), Kind: DivergedValue, Why: "unknown",
		Deviant: []int{},
	}
	for r, words := range wordsByRank {
		side := Side{
			Event: eventOf(words).String(), Site: reports[r].Site, Before: reports[r].Before,
		}
		if ValueOperation(words[0]).hasText() {
			side.Event = reports[r].Event
		}
		index := slices.IndexFunc(divergence.Sides, func(s Side) bool {
			return s.Event == side.Event && s.Site == side.Site && slices.Equal(s.Before, side.Before)
		})
		switch {
		case index >= 0:
			divergence.Sides[index].Ranks = append(divergence.Sides[index].Ranks, v.ranks[r])
		case len(divergence.Sides) == maxSides:
			divergence.Others = append(divergence.Others, v.ranks[r])
		default:
			side.Ranks = []int{v.ranks[r]}
			divergence.Sides = append(divergence.Sides, side)
		}
		if majority, hasMajority := majorityWords(wordsByRank); hasMajority && words != majority {
			divergence.Deviant = append(divergence.Deviant, v.ranks[r])
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
	divergence.Message = fmt.Sprintf("group %s: ranks differ in %s: %s", v.id, description,
		v.describeSides(divergence))
	return divergence
}

// majorityWords returns the words that more than half of the ranks sent, if there is a majority.
func majorityWords(wordsByRank []driver.Words) (common driver.Words, hasMajority bool) {
	counts := map[driver.Words]int{}
	for _, words := range wordsByRank {
		counts[words]++
		if 2*counts[words] > len(wordsByRank) {
			return words, true
		}
	}
	return common, false
}

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
