package diff_test

import (
	"bytes"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
)

func ranksOf(class history.Class, id string, events ...[]history.Event) []*history.Rank {
	var ranks []*history.Rank
	for n, list := range events {
		ranks = append(ranks, &history.Rank{Format: "test", Number: n, Sequences: []*history.Sequence{{
			Class: class, ID: id, Events: list, Segments: []history.SegmentInfo{{Bytes: 1 << 20}},
		}}})
	}

	return ranks
}

// TestFreesThatDifferWithoutEdits compares frees whose difference the aligner ignores, because
// they free the same block or a block that was never allocated. Compare must report the
// difference all the same.
func TestFreesThatDifferWithoutEdits(t *testing.T) {
	alloc := history.Event{Action: history.Alloc, Size: 512, Stack: -1}
	free := func(block int32, size int64) history.Event {
		return history.Event{Action: history.Free, Block: block, Size: size, Stack: -1}
	}
	for name, last := range map[string][2][]history.Event{
		"different size": {{alloc, free(0, 512)}, {alloc, free(0, 1024)}},
		"missing block":  {{alloc}, {alloc, free(1, 512)}},
	} {
		t.Run(name, func(t *testing.T) {
			r := diff.Compare(ranksOf(history.SymmemPool, "1", last[0], last[1]), diff.Options{})
			if r.RanksAgree || len(r.Sequences) != 1 || r.Sequences[0].RequestDifference == nil ||
				r.Sequences[0].RequestDifference.Kind == "" {
				t.Errorf("Compare = %+v; want a difference between requests", r)
			}
		})
	}
}

// TestTextHasNoControlCharacters writes a report about a group and files whose names contain
// escape sequences.
func TestTextHasNoControlCharacters(t *testing.T) {
	call := []history.Event{{Action: history.Call, Stack: -1}}
	ranks := ranksOf(history.Calls, "\x1b[2Jworld", call, call, nil)
	for _, r := range ranks {
		r.Texts, r.File = []string{"Barrier"}, "\x1b]0;file"
	}

	ranks[2].Sequences[0].ID = "\x1b[31mother"
	var b bytes.Buffer
	if err := diff.Compare(ranks, diff.Options{}).WriteText(&b); err != nil {
		t.Fatal(err)
	}

	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("text = %q; want no control characters", b.String())
	}
}
