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

func TestCountWrong(t *testing.T) {
	runtimes, err := symmem.OpenLocal(t.Context(), 1, symmem.Options{Backend: "host"})
	if err != nil {
		t.Fatal(err)
	}

	rt := runtimes[0]
	defer rt.Close()
	o := &CollectiveOptions{DataType: symmem.BFloat16, Sizes: []int64{8192}, Path: symmem.PathWindow}
	w := &world{rt: rt}
	if err := w.prepare(t.Context(), o); err != nil {
		t.Fatal(err)
	}

	const count = 3000
	for _, op := range operations {
		if op.kind == symmem.OpSend || op.kind == symmem.OpBarrier {
			continue // a single rank has no peer, and a barrier has no elements
		}

		t.Run(op.Name, func(t *testing.T) {
			c, err := w.newCall(o, &op, count, false)
			if err != nil {
				t.Fatal(err)
			}

			r := &runner{world: w, call: c}
			if err := r.fill(t.Context()); err != nil {
				t.Fatal(err)
			}

			if n, err := r.countWrong(t.Context()); err != nil || n != count {
				t.Errorf("before the call: %d wrong elements, error %v; want %d, nil", n, err, count)
			}

			if err := r.launch(t.Context()); err != nil {
				t.Fatal(err)
			}

			if n, err := r.countWrong(t.Context()); err != nil || n != 0 {
				t.Errorf("after the call: %d wrong elements, error %v; want 0, nil", n, err)
			}
		})
	}
}
