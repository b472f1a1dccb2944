package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"

	"symmem/internal/cuda"
	"symmem/internal/handoff"
)

// Ranks of one machine give each other memory by descriptors, which go over the private socket of
// package control/shm. Where those do not reach, in another container or on another machine of an
// NVLink fabric, they are fabric handles: bytes that go over the plane. Who has mapped memory keeps
// it when the rank that gave it ends.

// loan is an allocation that the other ranks of a group may map until it is withdrawn.
type loan struct {
	device *Device
	key    handoff.Key
	file   *os.File
	// fabric is the handle to tell them, for a group whose ranks are apart, or nil.
	fabric []byte
}

// lend offers an allocation to the other ranks of the group under a key. It is called on a thread
// of the device.
func (c *communicator) lend(key handoff.Key, handle cuda.Handle) (loan, error) {
	if c.apart {
		fabric, err := c.device.cuda.ExportFabric(handle)
		if err != nil {
			return loan{}, err
		}
		return loan{device: c.device, fabric: fabric[:]}, nil
	}
	file, err := c.device.offer(key, handle)
	if err != nil {
		return loan{}, err
	}
	return loan{device: c.device, key: key, file: file}, nil
}

// told is what the other ranks are told of a loan: nothing if there is none.
func (l *loan) told() []byte {
	if l.device == nil {
		return nil
	}
	return append([]byte{1}, l.fabric...)
}

// withdraw ends the offer of a descriptor. A fabric handle is good for as long as its memory.
func (l *loan) withdraw() {
	if l.file != nil {
		_ = l.device.withdraw(l.key, l.file) // which only closes a descriptor
	}
}

// borrow maps what a rank of the group has lent: fabric is what that one has told, or nothing.
func (c *communicator) borrow(
	ctx context.Context, rank int, key handoff.Key, fabric []byte, bytes int64,
) (uintptr, error) {
	if !c.apart {
		return c.device.fetch(ctx, rank, key, bytes)
	}
	var handle cuda.FabricHandle
	if copy(handle[:], fabric) != len(handle) || len(fabric) != len(handle) {
		return 0, fmt.Errorf("rank %d has told a fabric handle of %d bytes", rank, len(fabric))
	}
	at, err := c.device.mapImported(bytes, func() (cuda.Handle, error) {
		return c.device.cuda.ImportFabric(handle)
	})
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d by its fabric handle, which takes NVLink "+
			"between the two: %w", rank, err)
	}
	return at, nil
}

// offer exports an allocation under a key until the descriptor that it returns is withdrawn. It is
// called on a thread of the device.
func (d *Device) offer(key handoff.Key, handle cuda.Handle) (*os.File, error) {
	fd, err := d.cuda.ExportFD(handle)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "device memory")
	d.machine.Export(key, f)
	return f, nil
}

// withdraw ends an offer.
func (d *Device) withdraw(key handoff.Key, f *os.File) error {
	d.machine.Withdraw(key)
	return f.Close()
}

// fetch maps what a rank of this machine has exported.
func (d *Device) fetch(
	ctx context.Context, rank int, key handoff.Key, bytes int64,
) (at uintptr, err error) {
	f, err := d.machine.Fetch(ctx, rank, key)
	if err != nil {
		return 0, fmt.Errorf("fetching memory of rank %d: %w", rank, err)
	}
	defer f.Close()
	at, err = d.mapImported(bytes, func() (cuda.Handle, error) { return d.cuda.ImportFD(int(f.Fd())) })
	if err != nil {
		return 0, fmt.Errorf("mapping memory of rank %d: %w", rank, err)
	}
	return at, nil
}

// mapImported maps what an import gives.
func (d *Device) mapImported(
	bytes int64, imported func() (cuda.Handle, error),
) (at uintptr, err error) {
	err = d.do(func() error {
		handle, err := imported()
		if err != nil {
			return err
		}
		defer d.release(handle)
		at, err = d.mapShared(handle, bytes)
		return err
	})
	return at, err
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
