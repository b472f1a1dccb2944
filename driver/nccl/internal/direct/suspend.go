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

// Suspending a group releases its exchange memory for a while, and resuming the group allocates the
// memory again at the same addresses. All ranks take these steps: Suspend, then Allocate, then
// MapPeers (or Discard if a rank could not allocate its memory), then EndExport.

// suspension is the state of a suspended Exchange. Exchange.mu guards the fields.
type suspension struct {
	isActive bool // from Suspend until MapPeers has succeeded
	// hasOwnMemory is set while isActive is set and this rank's own memory is mapped again.
	hasOwnMemory bool
	// savedHeader is the start of this rank's memory, where kernels count calls. The rest of the
	// memory has no data between calls.
	savedHeader [kernels.HeaderBytes]byte
}

// Suspend unmaps the exchange memory and returns the number of bytes released. Call it after all
// kernels of the group have exited on all ranks.
func (e *Exchange) Suspend() (released int64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wasOpened := e.group.Sharing != nil && e.ownAddress() != 0
	if !wasOpened || e.isClosed() || e.suspension.isActive {
		return 0, nil
	}

	e.stopCopyGoroutines.Wait() // goroutines of Stop, which write to the memory
	g := e.group.Sharing.GPU
	header := dl.AddressOf(&e.suspension.savedHeader[0])
	if err := e.copyHeader(header, e.ownAddress()); err != nil {
		return 0, err
	}

	e.suspension.isActive = true
	err = g.Do(func() error {
		var errs []error
		for _, address := range e.addresses {
			if address != 0 {
				errs = append(errs, g.CUDA.Unmap(address, kernels.ExchangeBytes))
			}
		}

		return errors.Join(errs...)
	})
	return kernels.ExchangeBytes, err
}

// isClosed reports whether the exchange is not open. The caller must hold e.mu.
func (e *Exchange) isClosed() bool { return e.report == nil }

// ownAddress returns the address of this rank's memory, or 0 if it has none.
func (e *Exchange) ownAddress() uintptr {
	if len(e.addresses) == 0 {
		return 0
	}

	return e.addresses[e.group.Config.Rank]
}

// copyHeader copies the header between this rank's memory and savedHeader. dst and src are the
// addresses of both.
func (e *Exchange) copyHeader(dst, src uintptr) error {
	g := e.group.Sharing.GPU
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.MemcpyAsync(dst, src, kernels.HeaderBytes, stream)
		})
	})
	runtime.KeepAlive(e) // contains savedHeader
	return err
}

// Allocation is the new memory of this rank in a suspended Exchange.
type Allocation struct {
	exchange *Exchange
	key      handoff.Key
	shared   memory.Shared
}

// Allocate allocates this rank's memory at its old address, restores the header, and exports the
// memory. The caller must call EndExport or Discard. If the exchange is not suspended, Allocate
// returns nil, and all methods of a nil Allocation do nothing.
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
	err := e.group.Sharing.GPU.Do(a.create)
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = &driver.OutOfMemoryError{Requested: kernels.ExchangeBytes, Cause: err}
	}

	if err != nil {
		return nil, fmt.Errorf("allocating exchange memory: %w", err)
	}

	e.suspension.hasOwnMemory = true
	return a, nil
}

// create takes the steps of Allocate. The CUDA context must be current, and the caller must hold
// the mu of the Exchange.
func (a *Allocation) create() error {
	e := a.exchange
	g := e.group.Sharing.GPU
	const rdma = false // network cards do not access the memory
	prop := cuda.PinnedMemory(g.Device, g.SegmentProp.RequestedHandles, rdma)
	handle, err := g.CUDA.Create(kernels.ExchangeBytes, prop)
	if err != nil {
		return err
	}
	defer g.Release(handle) // the mapping keeps the memory
	if err := g.MapAt(e.ownAddress(), handle, kernels.ExchangeBytes); err != nil {
		return err
	}

	err = g.InternalStreams.Zero(g, e.ownAddress(), kernels.ExchangeBytes)
	if err == nil {
		savedHeader := dl.AddressOf(&e.suspension.savedHeader[0])
		err = e.copyHeader(e.ownAddress(), savedHeader)
	}

	if err == nil {
		a.shared, err = e.group.Sharing.Share(a.key, handle)
	}

	if err != nil {
		unmapErr := e.unmapWhenIdle(e.ownAddress())
		return errors.Join(err, unmapErr)
	}

	return nil
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

// MapPeers maps the other ranks' memory at the old addresses, and ends the suspension. messages
// holds each rank's result of EncodeMessage, by group rank. Exchange.Close must not run at the
// same time.
func (a *Allocation) MapPeers(ctx context.Context, messages [][]byte) error {
	if a == nil {
		return nil
	}

	e := a.exchange
	for groupRank := range e.group.Config.Ranks {
		if groupRank == e.group.Config.Rank {
			continue
		}

		if err := a.mapPeer(ctx, groupRank, messages[groupRank]); err != nil {
			unmapErr := e.unmapFirstPeers(groupRank)
			return errors.Join(err, unmapErr)
		}
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspension.isActive = false
	e.suspension.hasOwnMemory = false
	return nil
}

// mapPeer maps the memory of one group rank. message is that rank's result of EncodeMessage.
func (a *Allocation) mapPeer(ctx context.Context, groupRank int, message []byte) error {
	e := a.exchange
	group := e.group.Config
	worldRank := group.Ranks[groupRank]
	if len(message) == 0 {
		return fmt.Errorf("rank %d has not shared its exchange memory", worldRank)
	}

	fabricHandle := message[1:] // empty unless the ranks use fabric handles
	callText := "resuming group " + group.Name()
	return control.Fetch(ctx, e.group.Plane, group, groupRank, callText, func() error {
		_, err := e.group.Sharing.MapShared(ctx, worldRank, a.key, fabricHandle,
			kernels.ExchangeBytes, e.addresses[groupRank])
		return err
	})
}

// unmapFirstPeers unmaps the memory of the first count ranks, except this rank's own.
func (e *Exchange) unmapFirstPeers(count int) error {
	g := e.group.Sharing.GPU
	return g.Do(func() error {
		var errs []error
		for groupRank, address := range e.addresses[:count] {
			if groupRank != e.group.Config.Rank {
				errs = append(errs, g.CUDA.Unmap(address, kernels.ExchangeBytes))
			}
		}

		return errors.Join(errs...)
	})
}

// EndExport ends the export of the memory. Call it after all ranks have mapped the memory, or after
// the group has failed.
func (a *Allocation) EndExport() {
	if a != nil {
		a.shared.Withdraw()
	}
}

// Discard undoes Allocate. It is for the case that another rank could not allocate its memory.
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

// exchangeKey returns the key under which each rank of a group exports its exchange memory.
func exchangeKey(group *driver.GroupConfig) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("exchange/" + group.ID)}
}
