package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"

	"symmem/internal/cuda"
	"symmem/internal/handoff"
)

// Ranks of one machine give each other memory by descriptors, which go over the private socket
// of the host backend. Who has mapped it keeps it, whatever becomes of the rank that gave it.

// offer exports an allocation under a key until the descriptor that it returns is withdrawn. It is
// called on a thread of the device.
func (d *Device) offer(key handoff.Key, handle cuda.Handle) (*os.File, error) {
	fd, err := d.cuda.ExportFD(handle)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "device memory")
	d.control.Export(key, f)
	return f, nil
}

// withdraw ends an offer.
func (d *Device) withdraw(key handoff.Key, f *os.File) error {
	d.control.Withdraw(key)
	return f.Close()
}

// fetch maps what a rank has exported.
func (d *Device) fetch(
	ctx context.Context, rank int, key handoff.Key, bytes int64,
) (at uintptr, err error) {
	f, err := d.control.Fetch(ctx, rank, key)
	if err != nil {
		return 0, fmt.Errorf("fetching memory of rank %d: %w", rank, err)
	}
	defer f.Close()
	err = d.do(func() error {
		handle, err := d.cuda.ImportFD(int(f.Fd()))
		if err != nil {
			return err
		}
		defer d.release(handle)
		at, err = d.mapShared(handle, bytes)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d: %w", rank, err)
	}
	return at, nil
}

// mapShared maps an allocation for this GPU alone, at addresses of its own. It is called on a
// thread of the device.
func (d *Device) mapShared(handle cuda.Handle, bytes int64) (uintptr, error) {
	at, err := d.cuda.AddressReserve(bytes, d.info.Granularity)
	if err != nil {
		return 0, err
	}
	if err := d.cuda.Map(at, bytes, 0, handle); err != nil {
		return 0, errors.Join(err, d.cuda.AddressFree(at, bytes))
	}
	if err := d.cuda.SetAccess(at, bytes, d.gpu); err != nil {
		return 0, errors.Join(err, d.unmapShared(at, bytes))
	}
	return at, nil
}

func (d *Device) unmapShared(at uintptr, bytes int64) error {
	return errors.Join(d.cuda.Unmap(at, bytes), d.cuda.AddressFree(at, bytes))
}
