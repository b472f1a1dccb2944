package nccl

import (
	"errors"
	"fmt"
	"syscall"

	"symmem/driver"
	"symmem/internal/cuda"
)

// arena is a range of addresses for windows and one of the same size for the plain path.
type arena struct {
	device *Device
	bytes  int64
	// base begins the range that callers see, alias its twin, which is in no window.
	base, alias uintptr
	closed      bool // guarded by device.mu
	// kept tells that the arena may outlive the device, whose context it keeps; guarded by
	// device.mu.
	kept   bool
	keeper keeper
}

// Keep has the arena outlive the device. All its addresses stay reserved: CUDA gives them back only
// whole.
func (a *arena) Keep(int64) error {
	a.device.mu.Lock()
	defer a.device.mu.Unlock()
	a.keepContext()
	return nil
}

// keepContext has the device's context stay until the addresses are given back. device.mu is held.
func (a *arena) keepContext() {
	if !a.kept {
		a.kept = true
		a.device.kept++
	}
}

// cappedArena is the largest arena once addresses do not come back any more; see Close. Callers ask
// for fewer then.
const cappedArena = 64 << 30

// NewArena reserves addresses.
func (d *Device) NewArena(bytes int64) (driver.Arena, error) {
	granularity := d.info.Granularity
	if bytes <= 0 || bytes%granularity != 0 {
		return nil, fmt.Errorf("reserving an arena of %d bytes: not a multiple of %d",
			bytes, granularity)
	}
	if stuck.Load() && bytes > cappedArena {
		return nil, fmt.Errorf("reserving an arena of %d bytes while a kernel does not end: %w",
			bytes, syscall.ENOMEM)
	}
	a := &arena{device: d, bytes: bytes}
	err := d.do(func() (err error) {
		if a.base, err = d.cuda.AddressReserve(bytes, granularity); err != nil {
			return err
		}
		if a.alias, err = d.cuda.AddressReserve(bytes, granularity); err != nil {
			return errors.Join(err, d.cuda.AddressFree(a.base, bytes))
		}
		return nil
	})
	if errors.Is(err, cuda.ErrOutOfMemory) {
		// The caller may ask for fewer addresses, as it does of the system.
		err = errors.Join(err, syscall.ENOMEM)
	}
	if err != nil {
		return nil, fmt.Errorf("reserving an arena of %d bytes: %w", bytes, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arenas = append(d.arenas, a)
	return a, nil
}

// Address returns the arena's first address.
func (a *arena) Address() uintptr { return a.base }

// Close gives the addresses back, once no graph of another library has calls on segments there.
func (a *arena) Close() error {
	d := a.device
	d.mu.Lock()
	if a.closed {
		d.mu.Unlock()
		return nil
	}
	a.closed = true
	for i, other := range d.arenas {
		if other == a {
			d.arenas = append(d.arenas[:i:i], d.arenas[i+1:]...)
			break
		}
	}
	if d.inUse(&a.keeper) {
		a.keepContext()
	}
	d.mu.Unlock()
	if d.putOff(&a.keeper, nil, func() { _ = a.release() }) {
		return nil
	}
	return a.release()
}

// release gives the addresses back now.
func (a *arena) release() error {
	d := a.device
	if stuck.Load() {
		return nil // segments are still mapped there; see segment.release
	}
	err := d.do(func() error {
		return errors.Join(d.cuda.AddressFree(a.base, a.bytes),
			d.cuda.AddressFree(a.alias, a.bytes))
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.kept {
		d.kept--
		err = errors.Join(err, d.releaseContext())
	}
	return err
}

// aliasOf returns the address of the same memory that is in no window. Memory that is not of an
// arena has only one.
func (d *Device) aliasOf(address uintptr) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.arenas {
		if offset := address - a.base; address >= a.base && offset < uintptr(a.bytes) {
			return a.alias + offset
		}
	}
	return address
}

// Map makes a segment.
func (a *arena) Map(offset, bytes int64) (driver.Segment, error) {
	d := a.device
	g := d.info.Granularity
	if bytes <= 0 || bytes%g != 0 || offset < 0 || offset%g != 0 || offset > a.bytes-bytes {
		return nil, fmt.Errorf("mapping %d bytes at %d: not multiples of %d in an arena of %d",
			bytes, offset, g, a.bytes)
	}
	at, err := d.scatter.Draw(a.base, a.bytes, offset, bytes)
	if err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}
	s := &segment{arena: a, offset: at, bytes: bytes}
	if err := d.do(s.create); err != nil {
		return nil, fmt.Errorf("mapping %d bytes at %d: %w", bytes, offset, err)
	}
	d.list(s)
	return s, nil
}
