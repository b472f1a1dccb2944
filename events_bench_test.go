package symmem_test

import (
	"testing"

	"symmem"
	"symmem/event"
)

// BenchmarkAllocEvents measures what OnEvent adds to an Alloc and a Free.
func BenchmarkAllocEvents(b *testing.B) {
	var sum uint64
	for name, hook := range map[string]func(*event.Event){
		"without": nil, "with": func(e *event.Event) { sum += e.Number },
	} {
		b.Run(name, func(b *testing.B) {
			rt := openAloneWith(b, symmem.Options{OnEvent: hook})
			p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				buffer, err := p.Alloc(4096)
				if err != nil {
					b.Fatal(err)
				}
				if err := buffer.Free(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCollectiveEvents measures what OnEvent adds to the submission of an AllReduce.
func BenchmarkCollectiveEvents(b *testing.B) {
	var sum uint64
	for name, hook := range map[string]func(*event.Event){
		"without": nil, "with": func(e *event.Event) { sum += e.Number },
	} {
		b.Run(name, func(b *testing.B) {
			rt := openAloneWith(b, symmem.Options{OnEvent: hook})
			p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
			if err != nil {
				b.Fatal(err)
			}
			buffer, err := p.Alloc(4096)
			if err != nil {
				b.Fatal(err)
			}
			m := buffer.Memory()
			b.ReportAllocs()
			for b.Loop() {
				err := rt.World().AllReduce(b.Context(), m, m, 16, symmem.Float32, symmem.Sum, nil)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTrace measures what a trace adds to an Alloc with its Free, and to a collective.
func BenchmarkTrace(b *testing.B) {
	for name, folder := range map[string]string{"without": "", "with": b.TempDir()} {
		rt := openAloneWith(b, symmem.Options{Trace: folder})
		p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			b.Fatal(err)
		}
		b.Run("alloc/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buffer, err := p.Alloc(4096)
				if err != nil {
					b.Fatal(err)
				}
				if err := buffer.Free(); err != nil {
					b.Fatal(err)
				}
			}
		})
		buffer, err := p.Alloc(4096)
		if err != nil {
			b.Fatal(err)
		}
		m := buffer.Memory()
		b.Run("collective/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				err := rt.World().AllReduce(b.Context(), m, m, 16, symmem.Float32, symmem.Sum, nil)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
