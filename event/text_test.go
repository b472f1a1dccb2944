package event

import "testing"

func TestPlacementText(t *testing.T) {
	cases := map[string]Event{
		"alloc 1048576 B (stream 0) -> segment 2 offset 0x100000": {
			Kind: KindAlloc, Size: 1 << 20, Requested: 1 << 20, Segment: 2, Offset: 1 << 20,
		},
		"free 512 B (asked 500 B, stream 7) at segment 0 offset 0x0": {
			Kind: KindFree, Size: 512, Requested: 500, Stream: 7,
		},
		"free 512 B (stream 0) at segment 1 offset 0x0": {Kind: KindFree, Size: 512, Segment: 1},
		"reserve 0 B (asked 500 B, stream 0)": {
			Kind: KindReserve, Requested: 500, Segment: -1,
		},
		"register 512 B (stream 0) at segment 1 offset 0x0 with group world": {
			Kind: KindRegister, Size: 512, Segment: 1, Name: "world",
		},
		"scope begin of group world": {Kind: KindScopeBegin, Name: "world"},
		"scope end":                  {Kind: KindScopeEnd},
		"kind 99 0 B (stream 0) at segment 0 offset 0x0": {Kind: 99},
	}
	for want, e := range cases {
		if got := e.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
