package nccl

import "testing"

func TestHotCallsDoNotAllocate(t *testing.T) {
	if !pooled {
		t.Skip("under the race detector sync.Pool drops what it holds")
	}
	library, recorder := load(t, "22907", declarations+newer)
	recorder.Reset()
	for _, name := range []string{
		"all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send", "recv",
		"reduce, whose last two arguments are on the stack", "starting a group", "ending a group",
		"asking for errors",
	} {
		t.Run(name, func(t *testing.T) {
			call := calls[name].make
			if n := testing.AllocsPerRun(1000, func() { _ = call(library) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
