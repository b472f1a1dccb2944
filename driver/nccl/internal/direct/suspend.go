package direct

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"symmem/driver"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/handoff"
)

// suspension is the state of a suspended Exchange. Exchange.mu guards the fields.
type suspension struct {
	isActive bool // from Suspend until MapPeers has succeeded
	// hasOwnMemory is set while isActive is set and this rank's own memory is mapped again.
	hasOwnMemory bool
	// savedHeader is the start of this rank's memory, where kernels count calls.
	savedHeader [kernels.HeaderBytes]byte
}

// Suspend unmaps the exchange memory and returns the number of bytes released. All kernels of the
// group must have exited on all ranks.
func (e *Exchange) Suspend() (released int64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed() || e.group.Sharing == nil || e.ownAddress() == 0 || e.suspension.isActive {
		return 0, nil
	}
	e.stopCopyGoroutines.Wait() // goroutines of Stop, which write to the memory
	g := e.group.Sharing.GPU
	header := dl.AddressOf(&e.suspension.savedHeader[0])
	if err := e.copyHeader(header, e.ownAddress()); err != nil {
		return 0, err
	}
	e.suspension.isActive = true
	return kernels.ExchangeBytes, g.Do(func() error {
		var errs []error
		for _, address := range e.addresses {
			if address != 0 {
				errs = append(errs, g.CUDA.Unmap(address, kernels.ExchangeBytes))
			}
		}
		return errors.Join(errs...)
	})
}

// isClosed requires e.mu.
func (e *Exchange) isClosed() bool { return e.report == nil }

func (e *Exchange) ownAddress() uintptr {
	if len(e.addresses) == 0 {
		return 0
	}
	return e.addresses[e.group.Config.Rank]
}

func (e *Exchange) copyHeader(dst, src uintptr) error {
	g := e.group.Sharing.GPU
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.MemcpyAsync(dst, src, kernels.HeaderBytes, stream)
		})
	})
	runtime.KeepAlive(e)
	return err
}

// Allocation is the new memory of this rank in a suspended Exchange.
type Allocation struct {
	exchange *Exchange
	key      handoff.Key
	shared   memory.Shared
}

// Allocate allocates this rank's memory at its old address, restores the header, and exports the
// memory. It returns nil if the exchange is not suspended; all methods accept a nil Allocation.
// The caller must call EndExport or Discard.
func (e *Exchange) Allocate() (*Allocation, error) {
	e.group.Sharing.GPU.ReclaimBeforeMap() // an earlier Allocate may have left the addresses mapped
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.suspension.isActive {
		return nil, nil
	}
	if e.isClosed() {
		return nil, fmt.Errorf("allocating exchange memory: %w", driver.ErrClosed)
	}
	a := &Allocation{exchange: e, key: exchangeKey(e.group.Config)}
	g := e.group.Sharing.GPU
	err := g.Do(func() error {
		handle, err := g.CUDA.Create(kernels.ExchangeBytes,
			cuda.PinnedMemory(g.Device, g.SegmentProp.RequestedHandles, false))
		if err != nil {
			return err
		}
		defer g.Release(handle)
		if err := g.MapAt(e.ownAddress(), handle, kernels.ExchangeBytes); err != nil {
			return err
		}
		err = g.InternalStreams.Zero(g, e.ownAddress(), kernels.ExchangeBytes)
		if err == nil {
			err = e.copyHeader(e.ownAddress(), dl.AddressOf(&e.suspension.savedHeader[0]))
		}
		if err == nil {
			a.shared, err = e.group.Sharing.Share(a.key, handle)
		}
		if err != nil {
			return errors.Join(err, e.unmapWhenIdle(e.ownAddress()))
		}
		return nil
	})
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = &driver.OutOfMemoryError{Requested: kernels.ExchangeBytes, Cause: err}
	}
	if err != nil {
		return nil, fmt.Errorf("allocating exchange memory: %w", err)
	}
	e.suspension.hasOwnMemory = true
	return a, nil
}

// unmapWhenIdle unmaps exchange memory once the GPU can no longer access it.
func (e *Exchange) unmapWhenIdle(address uintptr) error {
	g := e.group.Sharing.GPU
	return g.FreeWhenIdle(func() error {
		return g.Do(func() error { return g.CUDA.Unmap(address, kernels.ExchangeBytes) })
	})
}

// EncodeMessage returns the message for MapPeers on other ranks, or nil without an allocation.
func (a *Allocation) EncodeMessage() []byte {
	if a == nil {
		return nil
	}
	return a.shared.Encode()
}

// MapPeers maps the other ranks' memory at the old addresses. messages holds each rank's
// EncodeMessage. Close must not run at the same time.
func (a *Allocation) MapPeers(ctx context.Context, messages [][]byte) error {
	if a == nil {
		return nil
	}
	e := a.exchange
	for r, rank := range e.group.Config.Ranks {
		if r == e.group.Config.Rank {
			continue
		}
		if len(messages[r]) == 0 {
			err := fmt.Errorf("rank %d has not shared its exchange memory", rank)
			return errors.Join(err, e.unmapPeers(r))
		}
		err := control.Fetch(ctx, e.group.Plane, e.group.Config, r,
			"resuming group "+e.group.Config.Name(), func() error {
				_, err := e.group.Sharing.MapShared(ctx, rank, a.key, messages[r][1:],
					kernels.ExchangeBytes, e.addresses[r])
				return err
			})
		if err != nil {
			return errors.Join(err, e.unmapPeers(r))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspension.isActive, e.suspension.hasOwnMemory = false, false
	return nil
}

// unmapPeers unmaps the memory of the first n ranks, except this rank's own.
func (e *Exchange) unmapPeers(n int) error {
	g := e.group.Sharing.GPU
	return g.Do(func() error {
		var errs []error
		for r, address := range e.addresses[:n] {
			if r != e.group.Config.Rank {
				errs = append(errs, g.CUDA.Unmap(address, kernels.ExchangeBytes))
			}
		}
		return errors.Join(errs...)
	})
}

// EndExport ends the export of the memory. It must be called after all ranks have mapped the
// memory or the group has failed.
func (a *Allocation) EndExport() {
	if a != nil {
		a.shared.Withdraw()
	}
}

// Discard frees the memory, because another rank could not allocate its memory.
func (a *Allocation) Discard() error {
	if a == nil {
		return nil
	}
	a.shared.Withdraw()
	e := a.exchange
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.suspension.hasOwnMemory || e.ownAddress() == 0 {
		return nil // the teardown of the group has freed the memory
	}
	e.suspension.hasOwnMemory = false
	g := e.group.Sharing.GPU
	return g.Do(func() error { return g.CUDA.Unmap(e.ownAddress(), kernels.ExchangeBytes) })
}

func exchangeKey(group *driver.GroupConfig) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("exchange/" + group.ID)}
}
