package bench

import (
	"testing"

	"pgregory.net/rapid"

	"symmem"
)

func operationNamed(t rapid.TB, name string) *Operation {
	parsed, err := ParseOperations([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return &parsed[0]
}

func TestUnwrittenElementsAreWrong(t *testing.T) {
	runtimes, err := symmem.OpenLocal(t.Context(), 1, symmem.Options{Backend: "host"})
	if err != nil {
		t.Fatal(err)
	}
	rt := runtimes[0]
	defer rt.Close()
	o := &Collective{DataType: symmem.BFloat16, Sizes: []int64{8192}, Path: symmem.PathWindow}
	w := &world{rt: rt}
	if err := w.prepare(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	const count = 3000
	for _, op := range operations {
		if op.kind == symmem.OpSend || op.kind == symmem.OpBarrier {
			continue // one rank has no neighbour, and a barrier has no elements
		}
		t.Run(op.Name, func(t *testing.T) {
			c, err := w.call(o, &op, count, false)
			if err != nil {
				t.Fatal(err)
			}
			r := &runner{world: w, call: c}
			if err := r.fill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n, err := r.wrong(t.Context()); err != nil || n != count {
				t.Errorf("%d of %d elements are wrong before the call, %v", n, count, err)
			}
			if err := r.launch(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n, err := r.wrong(t.Context()); err != nil || n != 0 {
				t.Errorf("%d elements are wrong after the call, %v", n, err)
			}
		})
	}
}
