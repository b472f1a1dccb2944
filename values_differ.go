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

// valueReport describes a rank's call of Value or Step, for the other ranks if the calls differ.
type valueReport struct {
	Event  string   `json:"event"`
	Site   string   `json:"site"`
	Before []string `json:"before"`
}

const (
	maxValueReport = 4096 // bytes of an encoded report
	maxValueSite   = 512  // bytes of Event and of Site
	maxSides       = 16
)

func (v *values) failInvalidData(name *valueName, err error) error {
	err = fmt.Errorf("value %d of group %s: %w", name.calls, v.id, err)
	v.comm.Abort(err)
	return v.life.awaitFault(err)
}

// explainDifference exchanges call sites and latest values, so all ranks must call it. The caller
// must hold name.mu.
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

// encode drops the oldest calls in Before if the result would be too long.
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

// exchangeReports returns the reports of all ranks. They first exchange the sizes, and then one
// piece of every report at a time. The caller must hold name.mu.
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
	for rank, encoded := range encodedReports {
		reports[rank] = decodeValueReport(encoded[:min(sizes[rank], uint64(len(encoded)))])
	}
	return reports, nil
}

// newDivergenceError puts ranks with the same report into one Side.
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
		if counts[words]++; 2*counts[words] > len(wordsByRank) {
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
