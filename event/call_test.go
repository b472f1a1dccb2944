package event

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestCallRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z-]{0,32}`) // 32 bytes fit in every field
		c := &Call{
			Operation: word.Draw(t, "operation"), Path: word.Draw(t, "path"),
			DataType: word.Draw(t, "data type"), ReduceOp: word.Draw(t, "reduction"),
			Root: rapid.Int().Draw(t, "root"), Count: rapid.Uint64().Draw(t, "count"),
			SendSegment: rapid.Int32().Draw(t, "send segment"),
			RecvSegment: rapid.Int32().Draw(t, "receive segment"),
			SendOffset:  rapid.Int64().Draw(t, "send offset"),
			RecvOffset:  rapid.Int64().Draw(t, "receive offset"),
			Counts:      word.Draw(t, "counts"), List: word.Draw(t, "list"),
			Ticket:      rapid.Uint64().Draw(t, "ticket"),
			Capture:     rapid.Uint64().Draw(t, "capture"),
			CaptureCall: rapid.Uint64().Draw(t, "capture call"),
		}
		encoded := AppendCall(nil, c)
		decoded, err := DecodeCall(encoded)
		if err != nil || *decoded != *c {
			t.Fatalf("round trip of %+v = %+v, %v; want the same", c, decoded, err)
		}

		kept := rapid.IntRange(1, len(encoded)-1).Draw(t, "cut")
		if _, err := DecodeCall(encoded[:kept]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("DecodeCall of the first %d bytes: got %v, want ErrMalformed", kept, err)
		}
	})
}

func TestCallText(t *testing.T) {
	names := Names{
		Pool: func(id uint64) string { return fmt.Sprintf("pool %d of group g", id) }, Renumbered: true,
	}
	for want, c := range map[string]Call{
		"Barrier, path plain": {
			Operation: "Barrier", Path: "plain", Root: -1, SendSegment: -1, RecvSegment: -1,
		},
		"Reduce sum of 4 float32, root 2 of the group, path window, " +
			"send pool 1 of group g segment 0 offset 0x10, " +
			"receive pool 2 of group g segment 3 offset 0x200, call 5 of capture 4, collective 6": {
			Operation: "Reduce", ReduceOp: "sum", DataType: "float32", Count: 4, Root: 2, Path: "window",
			SendPool: 1, SendOffset: 16, RecvPool: 2, RecvSegment: 3, RecvOffset: 512,
			Capture: 4, CaptureCall: 5, Ticket: 6,
		},
		"ReduceScatterV sum of 7 int8, counts 3 0 4, path plain, first of the list (A; B)": {
			Operation: "ReduceScatterV", ReduceOp: "sum", DataType: "int8", Count: 7, Root: -1,
			Path: "plain", SendSegment: -1, RecvSegment: -1, Counts: CountsText([]int64{3, 0, 4}),
			List: "A; B",
		},
		"Send of 4 int8, peer 2 of the group, path plain": {
			Operation: "Send", DataType: "int8", Count: 4, Root: 2, Path: "plain",
			SendSegment: -1, RecvSegment: -1,
		},
	} {
		if got := string(c.AppendText(nil, names)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A long text is cut, and ends with a digest (hash) of the whole text.
func TestLongCountsHaveDifferentDigests(t *testing.T) {
	const length = 1000    // more counts than CountsText lists
	const commonBytes = 40 // the listed counts are longer
	counts := make([]int64, length)
	text := CountsText(counts)
	counts[length-1] = 1
	changed := CountsText(counts)
	hasSameBeginning := text[:commonBytes] == changed[:commonBytes]
	if text == changed || len(text) > maxTextBytes || !hasSameBeginning {
		t.Errorf("CountsText of lists that differ at the end = %q, %q; want texts of at most %d bytes "+
			"that differ at the end", text, changed, maxTextBytes)
	}
}

func TestLongListsHaveDifferentDigests(t *testing.T) {
	const length = 100 // too many calls for maxTextBytes
	calls := slices.Repeat([]string{"AllReduce sum of 5 int32"}, length)
	text := ListText(calls)
	calls[length-1] = "AllReduce sum of 6 int32"
	changed := ListText(calls)
	if text == changed || len(text) > maxTextBytes || len(changed) > maxTextBytes {
		t.Errorf("ListText = %q, %q; want different texts of at most %d bytes", text, changed,
			maxTextBytes)
	}

	if short := ListText(calls[:2]); short != "AllReduce sum of 5 int32; AllReduce sum of 5 int32" {
		t.Errorf("ListText of two calls = %q; want both", short)
	}
}
