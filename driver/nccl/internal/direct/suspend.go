package direct

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"symmem/driver"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/handoff"
)

// suspension is guarded by Exchange.mu.
type suspension struct {
	// active is set while the memory of all ranks is unmapped. The addresses stay reserved.
	active bool
	// allocated is set if this rank's memory is mapped again but the peers' memory is not.
	allocated bool
	// header holds the header of this rank's memory, which contains the number of the next call.
	header [kernels.HeaderBytes]byte
}

// Suspend unmaps the exchange memory of all ranks, but keeps the addresses reserved. It returns the
// number of bytes released on this rank. No kernel of the group may be running on any rank.
func (x *Exchange) Suspend() (released int64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.report == nil || x.group.Sharing == nil || x.own() == 0 || x.suspension.active {
		return 0, nil
	}
	x.stops.Wait() // these goroutines write to the memory
	g := x.group.Sharing.GPU
	header := dl.AddressOf(&x.suspension.header[0])
	if err := x.copyHeader(header, x.own()); err != nil {
		return 0, err
	}
	x.suspension.active = true
	return kernels.ExchangeBytes, g.Do(func() error {
		var errs []error
		for _, address := range x.addresses {
			if address != 0 {
				errs = append(errs, g.CUDA.Unmap(address, kernels.ExchangeBytes))
			}
		}
		return errors.Join(errs...)
	})
}

// own returns the address of this rank's memory, or 0.
func (x *Exchange) own() uintptr {
	if len(x.addresses) == 0 {
		return 0
	}
	return x.addresses[x.group.Config.Rank]
}

func (x *Exchange) copyHeader(dst, src uintptr) error {
	g := x.group.Sharing.GPU
	err := g.Do(func() error {
		return g.InternalStream.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.MemcpyAsync(dst, src, kernels.HeaderBytes, stream)
		})
	})
	runtime.KeepAlive(x)
	return err
}

// Allocation holds the new memory of a suspended exchange.
type Allocation struct {
	exchange *Exchange
	key      handoff.Key
	shared   memory.Shared
}

// Allocate allocates this rank's memory again, at its old address, and exports it. It returns nil
// if the exchange is not suspended. The caller must call Withdraw or Discard.
func (x *Exchange) Allocate() (*Allocation, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.suspension.active {
		return nil, nil
	}
	if x.report == nil {
		return nil, fmt.Errorf("allocating exchange memory: %w", driver.ErrClosed)
	}
	a := &Allocation{exchange: x, key: exchangeKey(x.group.Config)}
	g := x.group.Sharing.GPU
	err := g.Do(func() error {
		handle, err := g.CUDA.Create(kernels.ExchangeBytes,
			cuda.PinnedMemory(g.Device, g.Prop.RequestedHandles, false))
		if err != nil {
			return err
		}
		defer g.Release(handle)
		if err := g.MapAt(x.own(), handle, kernels.ExchangeBytes); err != nil {
			return err
		}
		err = g.InternalStream.Zero(g, x.own(), kernels.ExchangeBytes)
		if err == nil {
			err = x.copyHeader(x.own(), dl.AddressOf(&x.suspension.header[0]))
		}
		if err == nil {
			a.shared, err = x.group.Sharing.Share(a.key, handle)
		}
		if err != nil {
			return errors.Join(err, g.CUDA.Unmap(x.own(), kernels.ExchangeBytes))
		}
		return nil
	})
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = &driver.OutOfMemoryError{Requested: kernels.ExchangeBytes, Cause: err}
	}
	if err != nil {
		return nil, fmt.Errorf("allocating exchange memory: %w", err)
	}
	x.suspension.allocated = true
	return a, nil
}

// Message returns what the other ranks need to map this rank's memory.
func (a *Allocation) Message() []byte {
	if a == nil {
		return nil
	}
	return a.shared.Encode()
}

// MapPeers maps the other ranks' memory at the old addresses, or nothing if it fails. messages
// holds the Message of each rank. Close must not run at the same time.
func (a *Allocation) MapPeers(ctx context.Context, messages [][]byte) error {
	if a == nil {
		return nil
	}
	x := a.exchange
	for r, rank := range x.group.Config.Ranks {
		if r == x.group.Config.Rank {
			continue
		}
		if len(messages[r]) == 0 {
			err := fmt.Errorf("rank %d has not shared its exchange memory", rank)
			return errors.Join(err, x.unmapPeers(r))
		}
		_, err := x.group.Sharing.MapShared(ctx, rank, a.key, messages[r][1:], kernels.ExchangeBytes,
			x.addresses[r])
		if err != nil {
			return errors.Join(err, x.unmapPeers(r))
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.suspension.active, x.suspension.allocated = false, false
	return nil
}

// unmapPeers unmaps the memory of those of the first n ranks that are peers.
func (x *Exchange) unmapPeers(n int) error {
	g := x.group.Sharing.GPU
	return g.Do(func() error {
		var errs []error
		for r, address := range x.addresses[:n] {
			if r != x.group.Config.Rank {
				errs = append(errs, g.CUDA.Unmap(address, kernels.ExchangeBytes))
			}
		}
		return errors.Join(errs...)
	})
}

// Withdraw ends the export, once all ranks have mapped the memory or the group has failed.
func (a *Allocation) Withdraw() {
	if a != nil {
		a.shared.Withdraw()
	}
}

// Discard frees the memory if another rank could not allocate its exchange memory.
func (a *Allocation) Discard() error {
	if a == nil {
		return nil
	}
	a.shared.Withdraw()
	x := a.exchange
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.suspension.allocated || x.own() == 0 {
		return nil // the teardown of the group has freed the memory
	}
	x.suspension.allocated = false
	g := x.group.Sharing.GPU
	return g.Do(func() error { return g.CUDA.Unmap(x.own(), kernels.ExchangeBytes) })
}

func exchangeKey(group *driver.GroupConfig) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("exchange/" + group.ID)}
}
