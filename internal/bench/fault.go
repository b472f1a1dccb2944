package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"symmem"
	"symmem/internal/sys"
)

// freshBytes is the size of the segment that page faults are measured on.
const freshBytes = 64 << 20

// smallPage is the page of memory without huge pages.
const smallPage = 4096

// touch is the time and the page faults of something.
type touch struct{ ns, faults float64 }

// Faults adds to a report what a fresh segment costs when its pages are first touched: by its
// owner, against a plain shared file without huge pages, and by a peer in the first broadcast over
// the window, against the second. It uses the host backend, whose memory pages are, whatever the
// plan says.
func Faults(ctx context.Context, p Plan, report *Report) (err error) {
	if report.Pages, err = lookAtPages(); err != nil {
		return err
	}
	var ours, plain, first, second []touch
	for range (p.Batches + 2) / 3 {
		w, err := freshWindow(ctx)
		if err != nil {
			return fmt.Errorf("touching a fresh segment: %w", err)
		}
		raw, err := plainTouch()
		if err != nil {
			return fmt.Errorf("touching a plain shared file: %w", err)
		}
		ours, plain = append(ours, w.owner), append(plain, raw)
		first, second = append(first, w.first), append(second, w.second)
	}
	report.Results = append(report.Results,
		touched("first touch by the owner", ours, "plain shared file", plain),
		touched("first broadcast over the window", first, "the second one", second))
	return nil
}

func touched(name string, ours []touch, baseline string, theirs []touch) Result {
	column := func(touches []touch, of func(touch) float64) (values []float64) {
		for _, t := range touches {
			values = append(values, of(t))
		}
		return values
	}
	ns, faults := func(t touch) float64 { return t.ns }, func(t touch) float64 { return t.faults }
	counted := Summarize(column(ours, faults)).Median
	r := Result{
		Name:    name,
		Params:  map[string]any{"size": "64MiB"},
		Summary: Summarize(column(ours, ns)),
		Counts: map[string]float64{
			"faults":          counted,
			"baseline faults": Summarize(column(theirs, faults)).Median,
		},
	}
	r.against(baseline, Summarize(column(theirs, ns)))
	return r
}

// timed runs a function and counts the page faults of the whole process meanwhile: work on a stream
// may run on any thread.
func timed(f func() error) (touch, error) {
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		return touch{}, fmt.Errorf("counting page faults: %w", err)
	}
	begin := time.Now()
	err := f()
	took := time.Since(begin)
	if rusageErr := syscall.Getrusage(syscall.RUSAGE_SELF, &after); rusageErr != nil {
		err = errors.Join(err, fmt.Errorf("counting page faults: %w", rusageErr))
	}
	faults := after.Minflt + after.Majflt - before.Minflt - before.Majflt
	return touch{float64(took.Nanoseconds()), float64(faults)}, err
}

// write touches every page.
func write(b []byte) error {
	for i := 0; i < len(b); i += smallPage {
		b[i] = 1
	}
	return nil
}

// plainTouch touches a fresh shared file that has no huge pages.
func plainTouch() (t touch, err error) {
	f, err := sys.Memfd("symmem-plain", freshBytes)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return touchFile(f)
}

// touchFile maps without the advice that sys.Map gives.
func touchFile(f *os.File) (touch, error) {
	b, err := syscall.Mmap(int(f.Fd()), 0, freshBytes,
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return touch{}, fmt.Errorf("mapping: %w", err)
	}
	t, err := timed(func() error { return write(b) })
	return t, errors.Join(err, syscall.Munmap(b))
}

// fresh is what happened to one fresh segment.
type fresh struct{ owner, first, second touch }

// freshWindow makes a segment on two ranks of this process, has the owner touch it, and broadcasts
// it twice into memory that is warm.
func freshWindow(ctx context.Context) (f fresh, err error) {
	err = onLocalRanks(ctx, 2, Plan{}.options(), func(rt *symmem.Runtime) error {
		got, err := freshOnRank(ctx, rt)
		if rt.Rank() == 0 {
			f = got
		}
		return err
	})
	return f, err
}

func freshOnRank(ctx context.Context, rt *symmem.Runtime) (f fresh, err error) {
	send, err := segmentOf(ctx, rt)
	if err != nil {
		return f, err
	}
	recv, err := segmentOf(ctx, rt)
	if err != nil {
		return f, err
	}
	if err := warm(recv); err != nil {
		return f, err
	}
	if rt.Rank() == 0 {
		if f.owner, err = ownTouch(send); err != nil {
			return f, err
		}
	}
	broadcast := func() error {
		err := rt.World().Broadcast(
			ctx, send.Memory(), recv.Memory(), freshBytes, symmem.Uint8, 0, nil)
		if err != nil {
			return err
		}
		return meet(ctx, rt)
	}
	if err := meet(ctx, rt); err != nil {
		return f, err
	}
	if f.first, err = timed(broadcast); err != nil {
		return f, err
	}
	f.second, err = timed(broadcast)
	return f, err
}

// segmentOf makes a registered segment of its own pool.
func segmentOf(ctx context.Context, rt *symmem.Runtime) (b symmem.Buffer, err error) {
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: freshBytes})
	if err != nil {
		return b, err
	}
	err = pool.With(ctx, rt.World(), func(s *symmem.Scope) (err error) {
		b, err = s.Alloc(freshBytes)
		return err
	})
	return b, err
}

func warm(b symmem.Buffer) error {
	view, err := symmem.View[uint8](b)
	if err != nil {
		return err
	}
	return write(view)
}

func ownTouch(b symmem.Buffer) (touch, error) {
	view, err := symmem.View[uint8](b)
	if err != nil {
		return touch{}, err
	}
	return timed(func() error { return write(view) })
}
