package nccl

import (
	"errors"
	"runtime"
	"testing"

	"symmem/driver"
	"symmem/internal/dl"
)

// TestKeptMemoryOutlivesTheDevice writes to a segment and reads it after the device was closed. The
// context, which is the device's alone here, goes with the last kept arena.
func TestKeptMemoryOutlivesTheDevice(t *testing.T) {
	d := alone(t)
	granularity := d.info.Granularity
	arenas := [2]driver.Arena{}
	segments := [2]driver.Segment{}
	for i := range arenas {
		var err error
		if arenas[i], err = d.NewArena(4 * granularity); err != nil {
			t.Fatal(err)
		}
		if segments[i], err = arenas[i].Map(0, granularity); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(segments[i].Keep(), arenas[i].Keep(granularity)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range arenas {
		if got := d.echo(t, segments[i].Address()); got != 0xa5a5a5a5 {
			t.Errorf("segment %d holds %#x", i, got)
		}
		if err := errors.Join(segments[i].Unmap(), arenas[i].Close()); err != nil {
			t.Error(err)
		}
	}
	if d.retained {
		t.Error("the context is retained, although nothing is kept")
	}
}

// echo fills the beginning of some memory, and reads it.
func (d *Device) echo(t *testing.T, at uintptr) (word uint32) {
	t.Helper()
	err := d.do(func() error {
		s, err := d.cuda.StreamCreate(true)
		if err != nil {
			return err
		}
		return errors.Join(d.cuda.MemsetD8Async(at, 0xa5, 4, s),
			d.cuda.MemcpyAsync(dl.AddressOf(&word), at, 4, s), d.cuda.StreamSynchronize(s),
			d.cuda.StreamDestroy(s))
	})
	runtime.KeepAlive(&word)
	if err != nil {
		t.Fatal(err)
	}
	return word
}
