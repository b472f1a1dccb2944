package binding

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
)

// pools implements the functions in symmem.h that open, use and close pools.
type pools struct{ session *session }

// OpenPool opens a pool and returns its number. The ranks of the group with handle domain share the
// pool. symmem.h describes the options.
func (ps *pools) OpenPool(domain uint64, optionsJSON []byte) (int, error) {
	r, g, err := ps.session.group(domain)
	if err != nil {
		return 0, err
	}

	var o PoolOptions
	if err := decode(optionsJSON, &o); err != nil {
		return 0, err
	}

	options, err := o.poolOptions(g.Group)
	if err != nil {
		return 0, err
	}

	poolNumber, err := ps.session.poolTable.openPool(r, options)
	if err != nil {
		return 0, err
	}

	ps.session.counters.pendingChanged()
	return poolNumber, nil
}

// ClosePool closes a pool. It fails if a buffer is live. With force, live buffers stay usable.
func (ps *pools) ClosePool(poolNumber int, force bool) error {
	_, p, err := ps.session.pool(poolNumber)
	if err != nil {
		return err
	}

	if poolNumber <= 0 {
		return fmt.Errorf("closing pool %d: it stays open until symmem_close: %w", poolNumber,
			symmem.ErrInvalid)
	}

	count, bytes := p.countLive()
	if count > 0 && !force {
		return fmt.Errorf("closing pool %d: %d buffers of %d bytes: %w", poolNumber, count, bytes,
			ErrLive)
	}

	freeErr := p.beginClose()
	ps.session.poolTable.remove(poolNumber, p)
	closeErr := p.Close()
	return errors.Join(freeErr, closeErr)
}

// Alloc allocates memory from a pool for use on a stream of another library.
func (ps *pools) Alloc(poolNumber int, bytes uint64, stream uintptr, site uint32) (uintptr, error) {
	r, p, err := ps.session.pool(poolNumber)
	if err != nil {
		return 0, err
	}

	if err := checkSize("allocating", bytes); err != nil {
		return 0, err
	}

	s, err := r.findStream(stream)
	if err != nil {
		return 0, err
	}

	return p.alloc(s, int64(bytes), site)
}

// AllocOn allocates like Alloc, but returns an error during a capture of the stream, and for a
// device other than that of the pool's rank.
func (ps *pools) AllocOn(
	poolNumber int, bytes uint64, device int, stream uintptr, site uint32,
) (uintptr, error) {
	if err := ps.CheckDevice(poolNumber, device); err != nil {
		return 0, err
	}

	st := streams{ps.session}
	if err := st.checkCapture("allocating a tensor on", stream); err != nil {
		return 0, err
	}

	return ps.Alloc(poolNumber, bytes, stream, site)
}

// maxBytes is the maximum size in a call. It exceeds the memory of any device.
const maxBytes = 1 << 46

func checkSize(action string, bytes uint64) error {
	if bytes > maxBytes {
		return fmt.Errorf("%s %d bytes: %w: the maximum is %d", action, bytes, symmem.ErrSize,
			int64(maxBytes))
	}

	return nil
}

// Free frees a buffer. If delay is set, Free only retires the buffer; see "Order of frees" in the
// package documentation.
func (ps *pools) Free(address uintptr, delay bool) error {
	_, notFoundErr := ps.session.anyRank() // ErrNotOpen if no rank is open
	for _, r := range ps.session.ranks.allRanks() {
		b, err := r.rt.Interop().Retire(address)
		if err == nil {
			return ps.session.poolTable.free(b, delay)
		}

		if !errors.Is(err, symmem.ErrForeign) {
			return err
		}

		notFoundErr = err // another rank may have the buffer
	}

	isFound, err := ps.session.closedRanks.freeBuffer(address)
	if isFound {
		return err
	}

	return notFoundErr
}

// Reserve maps memory in advance for a stream. Unless groupHandle is 0, Reserve registers this
// memory with the group.
func (ps *pools) Reserve(
	poolNumber int, bytes uint64, stream uintptr, groupHandle uint64, site uint32,
) error {
	r, p, err := ps.session.pool(poolNumber)
	if err != nil {
		return err
	}

	if err := checkSize("reserving", bytes); err != nil {
		return err
	}

	s, err := r.findStream(stream)
	if err != nil {
		return err
	}

	if err := p.freeRetired(); err != nil {
		return err
	}

	err = ps.session.runInterruptible("reserving", func(ctx context.Context) error {
		var noGroup *symmem.Group // r.register below registers the memory
		return r.interopAt(site).Reserve(ctx, p.Pool, s, int64(bytes), noGroup)
	})
	if err != nil {
		return err
	}

	if groupHandle == 0 {
		return nil
	}

	owner, g, err := ps.session.group(groupHandle)
	if err != nil {
		return err
	}

	if owner != r {
		return fmt.Errorf("registering pool %d with group %s: they belong to different worlds: %w",
			poolNumber, g.ID(), symmem.ErrInvalid)
	}

	return r.register(g, p, stream)
}

// Trim unmaps segments without live buffers, but keeps at least keepBytes mapped. It is collective
// over the pool's domain.
func (ps *pools) Trim(poolNumber int, keepBytes uint64) error {
	p, err := ps.session.freeRetiredIn(poolNumber)
	if err != nil {
		return err
	}

	return ps.session.runInterruptible("trimming", func(ctx context.Context) error {
		return p.Trim(ctx, int64(min(keepBytes, maxBytes)))
	})
}

// SuspendPool releases a pool's memory until ResumePool, and returns the size of this memory in
// bytes. ResumePool restores the contents if keepContents is set. SuspendPool is collective over
// the pool's domain.
func (ps *pools) SuspendPool(poolNumber int, keepContents bool) (int64, error) {
	p, err := ps.session.freeRetiredIn(poolNumber)
	if err != nil {
		return 0, err
	}

	contents := symmem.DiscardContents
	if keepContents {
		contents = symmem.KeepContents
	}

	suspend := func(ctx context.Context) (symmem.Suspension, error) { return p.Suspend(ctx, contents) }
	suspension, err := getInterruptible(&ps.session.interrupts, "suspending a pool", suspend)
	return suspension.Released, err
}

// ResumePool maps a suspended pool's memory again. It is collective over the pool's domain.
func (ps *pools) ResumePool(poolNumber int) error {
	_, p, err := ps.session.pool(poolNumber)
	if err != nil {
		return err
	}

	return ps.session.runInterruptible("resuming a pool", p.Resume)
}

// CheckDevice returns an error unless device is the number of the pool's device. On the host
// backend, which has no device, any number is right.
func (ps *pools) CheckDevice(poolNumber, device int) error {
	r, _, err := ps.session.pool(poolNumber)
	if err != nil {
		return err
	}

	rankDevice := r.rt.Device().Ordinal
	hasDevice := rankDevice >= 0
	if hasDevice && device != rankDevice {
		return fmt.Errorf("allocating on device %d: this rank uses device %d: %w",
			device, rankDevice, driver.ErrUnsupported)
	}

	return nil
}

// Note adds an event to those that ranks compare for a pool. The caller defines kind and value.
func (ps *pools) Note(poolNumber int, kind, value int64, site uint32) error {
	p, err := ps.session.freeRetiredIn(poolNumber)
	if err != nil {
		return err
	}

	return p.owner.interopAt(site).Note(p.Pool, kind, value)
}

const maxSiteBytes = 1 << 12 // much longer than the path of a source file

// SiteNumber returns the number of a call site, such as "train.py:12".
func (ps *pools) SiteNumber(text string) (uint32, error) {
	if err := ps.session.checkOpen(); err != nil {
		return 0, err
	}

	if len(text) > maxSiteBytes {
		return 0, fmt.Errorf("a call site has %d bytes; the maximum is %d: %w", len(text),
			maxSiteBytes, symmem.ErrInvalid)
	}

	return ps.session.sites.number(text), nil
}

// location describes a buffer or, if Live is false, free memory in a segment.
type location struct {
	Pool    int    `json:"pool"` // number of the pool
	Segment int    `json:"segment"`
	Offset  int64  `json:"offset"`  // of the located address in the segment
	Bytes   int64  `json:"bytes"`   // size of the buffer, or 0
	Live    bool   `json:"live"`    // whether the address is in a buffer
	Address uint64 `json:"address"` // where the buffer or the segment begins
}

// Locate describes, as JSON, the buffer that contains an address. If no buffer contains it, Locate
// describes the segment.
func (ps *pools) Locate(address uintptr) (string, error) {
	if err := ps.session.checkOpen(); err != nil {
		return "", err
	}

	table := &ps.session.poolTable
	for _, r := range ps.session.ranks.allRanks() {
		b, err := r.rt.Interop().Buffer(address)
		if err != nil {
			continue
		}

		p := table.findWrapper(b.Pool())
		if p == nil {
			continue // not a pool of this package
		}

		offsetInBuffer := int64(address - b.Address())
		return encode(location{
			Pool: table.numberOf(p), Segment: b.Segment(), Live: true, Bytes: b.Size(),
			Offset: b.Offset() + offsetInBuffer, Address: uint64(b.Address()),
		})
	}

	for _, p := range table.allPools() {
		for s := range p.Segments() {
			offset := address - s.Address // overflows to a large number if address is below s.Address
			if offset >= uintptr(s.Bytes) {
				continue
			}

			return encode(location{
				Pool: table.numberOf(p), Segment: s.Segment, Offset: int64(offset),
				Address: uint64(s.Address),
			})
		}
	}

	return "", fmt.Errorf("locating %#x: the address is in no open pool: %w", address,
		symmem.ErrForeign)
}
