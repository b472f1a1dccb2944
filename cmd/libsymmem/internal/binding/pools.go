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

// OpenPool opens a pool that the ranks of a group (the pool's domain) share, and returns the
// pool's number.
func (ps *pools) OpenPool(domain uint64, text []byte) (int, error) {
	r, g, err := ps.session.group(domain)
	if err != nil {
		return 0, err
	}
	var o PoolOptions
	if err := decode(text, &o); err != nil {
		return 0, err
	}
	options, err := o.withDomain(g.Group)
	if err != nil {
		return 0, err
	}
	poolNumber, err := ps.session.poolTable.openPool(r, options)
	if err != nil {
		return 0, err
	}
	ps.session.counters.Pending.Add(1)
	return poolNumber, nil
}

// ClosePool closes a pool. Library.Close describes force.
func (ps *pools) ClosePool(poolNumber int, force bool) error {
	_, p, err := ps.session.pool(poolNumber)
	if err != nil {
		return err
	}
	if poolNumber <= 0 {
		return fmt.Errorf("closing pool %d: it stays open until symmem_close: %w", poolNumber,
			symmem.ErrInvalid)
	}
	if count, bytes := p.countLive(); count > 0 && !force {
		return fmt.Errorf("closing pool %d: %d buffers of %d bytes: %w", poolNumber, count, bytes,
			ErrLive)
	}
	err = p.beginClose()
	ps.session.poolTable.remove(poolNumber, p)
	return errors.Join(err, p.Close())
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

// maxBytes exceeds the memory of any device.
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
	_, err := ps.session.anyRank()
	for _, r := range ps.session.ranks.allRanks() {
		var b symmem.Buffer
		if b, err = r.rt.Interop().Retire(address); err == nil {
			return ps.session.poolTable.free(b, delay)
		}
		if !errors.Is(err, symmem.ErrForeign) {
			return err
		}
	}
	if found, freeErr := ps.session.closedRankBuffers.freeBuffer(address); found {
		return freeErr
	}
	return err
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
	if err := p.flush(); err != nil {
		return err
	}
	err = ps.session.runInterruptible("reserving", func(ctx context.Context) error {
		return r.interopAt(site).Reserve(ctx, p.Pool, s, int64(bytes), nil)
	})
	if err != nil || groupHandle == 0 {
		return err
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
	p, err := ps.session.flushedPool(poolNumber)
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
	p, err := ps.session.flushedPool(poolNumber)
	if err != nil {
		return 0, err
	}
	contents := symmem.DiscardContents
	if keepContents {
		contents = symmem.KeepContents
	}
	var released int64
	err = ps.session.runInterruptible("suspending a pool", func(ctx context.Context) error {
		suspension, err := p.Suspend(ctx, contents)
		released = suspension.Released
		return err
	})
	if err != nil {
		return 0, err // after an interrupt, the function may still write released
	}
	return released, nil
}

// ResumePool maps a suspended pool's memory again. It is collective over the pool's domain.
func (ps *pools) ResumePool(poolNumber int) error {
	_, p, err := ps.session.pool(poolNumber)
	if err != nil {
		return err
	}
	return ps.session.runInterruptible("resuming a pool", p.Resume)
}

// CheckDevice returns an error unless device is the device of the pool's rank.
func (ps *pools) CheckDevice(poolNumber, device int) error {
	r, _, err := ps.session.pool(poolNumber)
	if err != nil {
		return err
	}
	if rankDevice := r.rt.Device().Ordinal; rankDevice >= 0 && device != rankDevice {
		return fmt.Errorf("allocating on device %d: this rank uses device %d: %w",
			device, rankDevice, driver.ErrUnsupported)
	}
	return nil
}

// Note adds an event to those that ranks compare for a pool. The caller defines kind and value.
func (ps *pools) Note(poolNumber int, kind, value int64, site uint32) error {
	p, err := ps.session.flushedPool(poolNumber)
	if err != nil {
		return err
	}
	return p.owner.interopAt(site).Note(p.Pool, kind, value)
}

const maxSiteBytes = 1 << 12

// SiteNumber returns the number of a call site, such as "train.py:12".
func (ps *pools) SiteNumber(text string) (uint32, error) {
	if _, err := ps.session.anyRank(); err != nil {
		return 0, err
	}
	if len(text) > maxSiteBytes {
		return 0, fmt.Errorf("a call site has %d bytes; the maximum is %d: %w", len(text),
			maxSiteBytes, symmem.ErrInvalid)
	}
	return ps.session.sites.number(text), nil
}

type location struct {
	Pool    int    `json:"pool"`
	Segment int    `json:"segment"`
	Offset  int64  `json:"offset"`
	Bytes   int64  `json:"bytes"`
	Live    bool   `json:"live"`
	Address uint64 `json:"address"`
}

// Locate describes, as JSON, the buffer that contains an address or, without a buffer, the
// segment.
func (ps *pools) Locate(address uintptr) (string, error) {
	if _, err := ps.session.anyRank(); err != nil {
		return "", err
	}
	pools := &ps.session.poolTable
	for _, r := range ps.session.ranks.allRanks() {
		b, err := r.rt.Interop().Buffer(address)
		if p := pools.findWrapper(b.Pool()); err == nil && p != nil {
			return encode(location{
				Pool: pools.numberOf(p), Segment: b.Segment(), Live: true, Bytes: b.Size(),
				Offset: b.Offset() + int64(address-b.Address()), Address: uint64(b.Address()),
			})
		}
	}
	for _, p := range pools.allPools() {
		for s := range p.Segments() {
			if offset := address - s.Address; offset < uintptr(s.Bytes) {
				return encode(location{
					Pool: pools.numberOf(p), Segment: s.Segment, Offset: int64(offset),
					Address: uint64(s.Address),
				})
			}
		}
	}
	return "", fmt.Errorf("locating %#x: the address is in no open pool: %w", address,
		symmem.ErrForeign)
}
