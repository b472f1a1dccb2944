package dl

import "testing"

func TestCallsDoNotAllocate(t *testing.T) {
	if !poolKeepsItems {
		t.Skip("sync.Pool drops items under the race detector")
	}

	getpid, _ := FindDefault("getpid")
	abs, _ := FindDefault("abs")
	memcpy, _ := FindDefault("memcpy")
	src, dst := new([64]byte), new([64]byte)
	for name, call := range map[string]func(){
		"without arguments": func() { getpid.Call() },
		"with arguments":    func() { memcpy.Call(AddressOf(dst), AddressOf(src), 64) },
		"for a status":      func() { getpid.CallAfterStep(&Step{}) },
		"for a status, after a step": func() {
			getpid.CallAfterStep(&Step{Function: abs})
		},
		"with thirteen arguments": func() { getpid.Call(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13) },
		"with a result in a cell": func() {
			cell := NewCell(uint64(7))
			memcpy.Call(cell.Address(), AddressOf(src), 8)
			cell.Take()
		},
	} {
		t.Run(name, func(t *testing.T) {
			if n := testing.AllocsPerRun(1000, call); n != 0 {
				t.Errorf("got %v allocations per call, want 0", n)
			}
		})
	}
}

func BenchmarkCall(b *testing.B) {
	abs, _ := FindDefault("abs")
	memcpy, _ := FindDefault("memcpy")
	src, dst := new([64]byte), new([64]byte)
	prepared := abs.Prepare(&Step{Function: abs}, 1)
	for _, c := range []struct {
		name string
		call func()
	}{
		{"abs", func() { abs.Call(1) }},
		{"abs for a status", func() { abs.CallAfterStep(&Step{}, 1) }},
		{"abs for a status after a step", func() { abs.CallAfterStep(&Step{Function: abs}, 1) }},
		{"abs prepared", func() { prepared.Call() }},
		{"memcpy", func() { memcpy.Call(AddressOf(dst), AddressOf(src), 64) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.call()
			}
		})
	}
}
