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

// Suppose that the four ranks of a group compare a value, and that rank 3 passes 64 instead of 32.
// For this comparison, the ranks have exchanged a few words: the operation and the value. Now they
// exchange reports, which describe their calls in more detail: also the line of code, and earlier
// calls. From the reports, all ranks make the same DivergenceError. It has a side for each distinct
// report: one for the ranks 0 to 2, and one for rank 3.
//
// The ranks can exchange only 48 bytes at once. They first exchange the sizes of their reports, and
// then one piece of 48 bytes after the other, until the longest report is complete.

// valueReport describes a rank's call. Its fields become those of a Side in the DivergenceError.
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

// explainDifference returns a DivergenceError for calls that differ between the ranks. All ranks
// must call it, because it exchanges reports. The caller must hold name.mu.
func (v *values) explainDifference(ctx context.Context, name *valueName, c *valueCall) error {
	site := c.site
	isRecorded := site != 0
	if !isRecorded {
		site = v.rt.sites.callerSite()
	}

	own := valueReport{
		Event: c.event().String(), Site: v.rt.sites.text(site), Before: v.latestCalls(),
	}
	words := slices.Clone(name.gathered) // exchangeReports overwrites name.gathered
	reports, err := v.exchangeReports(ctx, name, own)
	if err != nil {
		return err
	}

	description := fmt.Sprintf("value %q, call %d", c.name, name.calls)
	if c.operation == ValueStep {
		description = fmt.Sprintf("step %d", name.calls)
	}

	return v.newDivergenceError(description, words, reports)
}

// failInvalidData makes the group fail because a rank has sent invalid data. It returns the cause
// that the ranks agree on.
func (v *values) failInvalidData(name *valueName, err error) error {
	err = fmt.Errorf("value %d of group %s: %w", name.calls, v.id, err)
	v.comm.Abort(err)
	return v.life.awaitFault(err)
}

// encode returns the report as JSON of at most maxValueReport bytes. It shortens Event and Site,
// and drops the oldest calls in Before while the JSON is too long. If it is too long even without
// Before, encode returns nil.
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

// exchangeReports returns the reports of all ranks, by group rank. The caller must hold name.mu.
func (v *values) exchangeReports(
	ctx context.Context, name *valueName, own valueReport,
) ([]valueReport, error) {
	encoded := own.encode()
	sizes, err := v.exchangeSizes(ctx, name, len(encoded))
	if err != nil {
		return nil, err
	}

	encodedByRank := make([][]byte, len(sizes)) // with zeros at the end
	for start := 0; start < slices.Max(sizes); start += pieceBytes {
		rest := encoded[min(start, len(encoded)):] // empty if only longer reports continue
		if err := v.gatherInto(ctx, name, pieceOf(rest)); err != nil {
			return nil, err
		}

		for rank, words := range name.gathered {
			for _, word := range words {
				encodedByRank[rank] = binary.LittleEndian.AppendUint64(encodedByRank[rank], word)
			}
		}
	}

	reports := make([]valueReport, len(sizes))
	for rank, size := range sizes {
		reports[rank] = decodeValueReport(encodedByRank[rank][:size])
	}

	return reports, nil
}

// exchangeSizes returns the sizes in bytes of all ranks' encoded reports. If a rank sends anything
// else, the group fails.
func (v *values) exchangeSizes(
	ctx context.Context, name *valueName, ownBytes int,
) (sizes []int, err error) {
	err = v.gatherInto(ctx, name, driver.Words{uint64(valueReports), uint64(ownBytes)})
	if err != nil {
		return nil, err
	}

	for rank, words := range name.gathered {
		isSize := ValueOperation(words[0]) == valueReports && words[1] <= maxValueReport
		if !isSize {
			err := fmt.Errorf("rank %d of the group sent no report", rank)
			return nil, v.failInvalidData(name, err)
		}

		sizes = append(sizes, int(words[1]))
	}

	return sizes, nil
}

// gatherInto stores the words of all ranks in name.gathered.
func (v *values) gatherInto(ctx context.Context, name *valueName, own driver.Words) error {
	err := name.gather.Gather(ctx, own, name.gathered)
	return v.life.awaitFault(err)
}

// pieceBytes is 48: driver.Words has six words of 8 bytes.
const pieceBytes = 8 * len(driver.Words{})

// pieceOf returns the first pieceBytes of the rest of a report, as words. If the rest is shorter,
// zeros follow it.
func pieceOf(rest []byte) (words driver.Words) {
	var piece [pieceBytes]byte
	copy(piece[:], rest)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(piece[8*i:])
	}

	return words
}

// newDivergenceError returns the error for calls that differ. wordsByRank holds what the ranks have
// compared, and reports describes it. Both are indexed by group rank.
func (v *values) newDivergenceError(
	description string, wordsByRank []driver.Words, reports []valueReport,
) *DivergenceError {
	d := &DivergenceError{
		Group: v.id, Members: slices.Clone(v.ranks), Kind: DivergedValue, Why: "unknown",
		Deviant: []int{}, // not nil, so that JSON has a list
	}
	majority, hasMajority := majorityWords(wordsByRank)
	for groupRank, words := range wordsByRank {
		worldRank := v.ranks[groupRank]
		d.addRank(worldRank, sideOf(words, reports[groupRank]))
		if hasMajority && words != majority {
			d.Deviant = append(d.Deviant, worldRank)
		}
	}

	for _, side := range d.Sides {
		slices.Sort(side.Ranks)
	}

	slices.Sort(d.Others)
	slices.Sort(d.Deviant)
	slices.SortFunc(d.Sides, func(a, b Side) int { return cmp.Compare(a.Ranks[0], b.Ranks[0]) })
	sides := v.describeSides(d)
	d.Message = fmt.Sprintf("group %s: ranks differ in %s: %s", v.id, description, sides)
	return d
}

// sideOf describes a rank's call by its words. Of a text, the words contain only a hash, so sideOf
// takes the description from the report.
func sideOf(words driver.Words, report valueReport) Side {
	event := eventOf(words).String()
	if ValueOperation(words[0]).hasText() {
		event = report.Event
	}

	return Side{Event: event, Site: report.Site, Before: report.Before}
}

// addRank adds a rank to the equal side in d, or else adds its side. If there are too many sides,
// it adds the rank to Others.
func (d *DivergenceError) addRank(rank int, own Side) {
	equal := slices.IndexFunc(d.Sides, func(s Side) bool {
		return s.Event == own.Event && s.Site == own.Site && slices.Equal(s.Before, own.Before)
	})
	switch {
	case equal >= 0:
		d.Sides[equal].Ranks = append(d.Sides[equal].Ranks, rank)
	case len(d.Sides) == maxSides:
		d.Others = append(d.Others, rank)
	default:
		own.Ranks = []int{rank}
		d.Sides = append(d.Sides, own)
	}
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

// describeSides lists the calls and their ranks, as in "ranks 0-2 have ... at file.go:7; rank 3 has
// ...".
func (v *values) describeSides(d *DivergenceError) string {
	var texts []string
	for _, s := range d.Sides {
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

	if len(d.Others) > 0 {
		texts = append(texts, driver.RanksOf(d.Others, v.ranks)+" differ, too")
	}

	return strings.Join(texts, "; ")
}
