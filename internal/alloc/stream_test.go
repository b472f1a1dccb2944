package alloc

import "testing"

func TestStreamsAreNumberedByFirstRequest(t *testing.T) {
	const named, unused, late, reserved Stream = 700, 3, 40_000, 2
	c := newCore(t, Default())
	b := mustAlloc(t, c, Unit, named)
	if err := c.Use(b.Handle, unused); err != nil {
		t.Fatal(err)
	}

	c.StreamCompleted(unused, c.Mark())
	growth, err := c.Reserve(Unit, reserved)
	if err == nil {
		_, err = c.AddSegment(growth, 0)
	}

	if err != nil {
		t.Fatal(err)
	}

	for _, s := range []Stream{0, late, named} {
		mustAlloc(t, c, Unit, s)
	}

	if _, _, err := c.Alloc(0, unused+1); err == nil {
		t.Fatal("Alloc(0) succeeded")
	}

	for s, want := range map[Stream]uint32{
		0: 0, named: 1, reserved: 2, late: 3, unused: 0, unused + 1: 0,
	} {
		if n := c.Number(s); n != want {
			t.Errorf("stream %d has number %d, want %d", s, n, want)
		}
	}
}
