package symmem_test

import (
	"testing"

	"symmem"
)

// BenchmarkPlan measures the time to make a plan (cold), and the time to find the plan in the
// group's cache (warm).
func BenchmarkPlan(b *testing.B) {
	runtimes := local(b, 2)
	memories := make([]symmem.Memory, 2)
	each(b, runtimes, func(i int, rt *symmem.Runtime) error {
		p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}

		buffer, err := p.Alloc(64 << 10)
		if err != nil {
			return err
		}

		memories[i] = buffer.Memory()
		return p.Register(b.Context(), rt.World())
	})
	for _, path := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
	} {
		call := symmem.Call{
			Type: symmem.Float32, Count: 4096, Send: memories[0], Recv: memories[0], Path: path,
		}
		for name, plan := range map[string]func() error{
			"cold": func() error { return symmem.ColdPlan(b.Context(), runtimes[0].World(), call) },
			"warm": func() error { return symmem.WarmPlan(b.Context(), runtimes[0].World(), call) },
		} {
			b.Run(name+"/"+path.String(), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := plan(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
