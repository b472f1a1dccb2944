package diff_test

import (
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
)

// TestReplayOfNote replays a note between an allocation and its free. The note must not count as a
// free of a block.
func TestReplayOfNote(t *testing.T) {
	events := []history.Event{
		{Action: history.Alloc, Size: 512, Block: 0, Stack: noStack},
		{Action: history.Call, Block: 0, Stack: noStack}, // Block is the index of the text
		{Action: history.Free, Size: 512, Block: 0, Stack: noStack},
	}
	ranks := ranksOf(history.SymmemPool, "1 of group world", events, events)
	for _, r := range ranks {
		r.Texts = []string{"note"}
	}

	got := diff.Compare(ranks, diff.Options{}).Sequences[0].Replay
	if got == nil || got.SymmemRequestIndex != -1 || !strings.HasSuffix(got.SymmemText, "to the end") {
		t.Errorf("Replay = %+v; want agreement to the end", got)
	}
}
