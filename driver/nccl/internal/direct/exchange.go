package direct

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
)

// Exchange is the memory of a group that the ranks' kernels write to each other, as this rank
// has it mapped, and where its kernels report faults.
type Exchange struct {
	// at is by group rank. It is written before the group is used, and when that has ended, guarded
	// by mu.
	at [kernels.MaxRanks]uintptr
	// Multiprocessors is how many the kernels of every rank can count on. It is written before the
	// group is used.
	Multiprocessors int
	// Overlaps reports whether kernels may begin before those ahead of them have ended. Not where
	// ranks of this process share the GPU: blocks that wait could hold what another rank needs. It is
	// written before the group is used.
	Overlaps bool

	group Group

	mu ranked.Mutex[exchangeMu]
	// report is the memory in which kernels and the host report to each other; once it is freed, last
	// keeps its contents. Both are guarded by mu.
	report *kernels.Report
	last   kernels.Report
	// stopping is Stop's copy to the GPU.
	stopping sync.WaitGroup
}

// Reported returns what a kernel has reported, and reports whether one has.
func (x *Exchange) Reported() (kernels.Report, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.report != nil {
		return x.report.Read()
	}
	return x.last.Read()
}

// Places are where kernels find the exchange memory of all ranks, and where they report. A group
// that has ended has none.
func (x *Exchange) Places() (kernels.Places, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.report == nil {
		return kernels.Places{}, driver.ErrClosed
	}
	return kernels.Places{Exchange: x.at, Report: dl.AddressOf(x.report)}, nil
}

// capabilities is the message that ranks exchange before a group gets its exchange memory.
type capabilities struct {
	// Why says why the rank has none; empty if it has.
	Why string `json:"why,omitempty"`
	// Multiprocessors is how many of its GPU its kernels can count on.
	Multiprocessors int `json:"multiprocessors,omitempty"`
	// Fabric is the handle of its memory, where descriptors do not reach.
	Fabric []byte `json:"fabric,omitempty"`
}

// Group describes the group of an exchange.
type Group struct {
	Config  *driver.GroupConfig
	Plane   control.Plane
	Sharing *memory.Sharing
	// Reports and Code are the device's: the kernels, and where they report.
	Reports *gpu.Pinned[kernels.Report]
	Code    *gpu.Code
	// Sharers is how many ranks of this process have its GPU, this one among them.
	Sharers int
	// NoFabric is the reason why ranks in different places cannot map each other's memory, equal on
	// all ranks; it is empty if they may be able to.
	NoFabric string
	// Linked returns an error unless the GPUs of the group are joined as kernels need it.
	Linked func() error
}

// Open allocates the exchange memory of the group, on all ranks or on none. It returns an error
// only if the ranks could not agree; none is the reason why the group has no exchange memory. If
// all ranks know such a reason beforehand, they skip the exchange of messages.
func (x *Exchange) Open(ctx context.Context, g Group) (none string, err error) {
	x.group = g
	ranks := len(g.Config.Ranks)
	switch {
	case ranks == 1:
		return "the group has one rank", nil
	case ranks > kernels.MaxRanks:
		return fmt.Sprintf("the group has %d ranks: %d are the most", ranks, kernels.MaxRanks), nil
	case g.Sharing.Apart && g.NoFabric != "":
		return g.NoFabric, nil
	}
	key := handoff.Key{Space: handoff.Space("exchange/" + g.Config.ID)}
	mine, withdraw := x.prepare(key)
	defer withdraw()
	all, none, err := x.agree(ctx, &mine)
	if err != nil || none != "" {
		return none, err
	}
	mine.Why = ""
	if err := x.mapPeers(ctx, key, all); err != nil {
		mine.Why = err.Error()
	}
	_, none, err = x.agree(ctx, &mine)
	return none, err
}

// agree sends the others what this rank has, and takes the first reason against it.
func (x *Exchange) agree(
	ctx context.Context, mine *capabilities,
) (all []capabilities, none string, err error) {
	encoded, err := json.Marshal(mine)
	if err != nil {
		return nil, "", err
	}
	received, err := x.group.Plane.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return nil, "", err
	}
	all = make([]capabilities, len(received))
	x.Multiprocessors = mine.Multiprocessors
	for r := range all {
		theirs, rank := &all[r], x.group.Config.Ranks[r]
		if err := json.Unmarshal(received[r], theirs); err != nil {
			return nil, "", fmt.Errorf("reading what rank %d has: %w", rank, err)
		}
		if theirs.Why != "" && none == "" {
			none = fmt.Sprintf("rank %d: %s", rank, control.Printable(theirs.Why))
		}
		x.Multiprocessors = min(x.Multiprocessors, theirs.Multiprocessors)
	}
	return all, none, nil
}

// prepare makes this rank's own memory and offers it to the others until withdraw is called.
func (x *Exchange) prepare(key handoff.Key) (mine capabilities, withdraw func()) {
	withdraw = func() {}
	err := x.group.Linked()
	if err == nil {
		err = x.group.Sharing.GPU.Do(func() (err error) {
			withdraw, err = x.make(key, &mine)
			return err
		})
	}
	if err != nil {
		mine.Why = err.Error()
	}
	return mine, withdraw
}

// make is prepare on a thread of the context.
func (x *Exchange) make(key handoff.Key, mine *capabilities) (withdraw func(), err error) {
	withdraw = func() {}
	g, me := x.group.Sharing.GPU, x.group.Config.Rank
	if err = x.group.Code.Load(g); err != nil {
		return withdraw, err
	}
	x.Overlaps = x.group.Code.Overlaps && x.group.Sharers == 1
	count, err := g.Attribute(cuda.AttributeMultiprocessorCount)
	if err != nil {
		return withdraw, err
	}
	mine.Multiprocessors = max(1, count/x.group.Sharers)
	report, err := x.group.Reports.Take(g.CUDA)
	if err != nil {
		return withdraw, err
	}
	x.mu.Lock()
	x.report = report
	x.mu.Unlock()
	handle, err := g.CUDA.Create(kernels.ExchangeBytes,
		cuda.PinnedMemory(g.Device, g.Prop.RequestedHandles, false))
	if err != nil {
		return withdraw, err
	}
	defer g.Release(handle)
	if x.at[me], err = g.Map(handle, kernels.ExchangeBytes); err != nil {
		return withdraw, err
	}
	if err := g.Aside.Zero(g, x.at[me], kernels.ExchangeBytes); err != nil {
		return withdraw, err
	}
	shared, err := x.group.Sharing.Share(key, handle)
	mine.Fabric = shared.Fabric
	return shared.Withdraw, err
}

// mapPeers maps the memory of the other ranks.
func (x *Exchange) mapPeers(ctx context.Context, key handoff.Key, all []capabilities) error {
	for r, rank := range x.group.Config.Ranks {
		if r == x.group.Config.Rank {
			continue
		}
		at, err := x.group.Sharing.MapShared(ctx, rank, key, all[r].Fabric, kernels.ExchangeBytes)
		if err != nil {
			return err
		}
		x.at[r] = at
	}
	return nil
}

// Close gives the memory back, once no kernel may use it. No kernel of the group runs on an open
// stream any more, nor will one.
func (x *Exchange) Close() error {
	if x.group.Sharing == nil {
		return nil
	}
	return x.group.Sharing.GPU.GiveBack(x.release)
}

func (x *Exchange) release() error {
	report := x.retire()
	x.stopping.Wait()
	g := x.group.Sharing.GPU
	err := g.Do(func() error {
		var errs []error
		for _, at := range x.at {
			if at != 0 {
				errs = append(errs, g.Unmap(at, kernels.ExchangeBytes))
			}
		}
		return errors.Join(errs...)
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	x.at = [kernels.MaxRanks]uintptr{}
	if report != nil {
		x.group.Reports.Put(report)
	}
	return err
}

// retire takes the report away, so that nothing is done with the memory from then on.
func (x *Exchange) retire() *kernels.Report {
	x.mu.Lock()
	defer x.mu.Unlock()
	report := x.report
	if report != nil {
		x.last, _ = report.Read()
		x.report = nil
	}
	return report
}

// Stop ends the kernels of this rank that wait for others, and those to come. It waits for nothing.
//
// Kernels that wait look at the word of the host. It is far away, so kernels that begin look at one
// on the GPU, to which it is copied: to ask the host cost each call of 1 KiB 0.5 us of 2.7.
func (x *Exchange) Stop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.report == nil {
		return
	}
	x.report.End()
	if gpu.Stuck.Load() {
		return // calls of CUDA may wait without end
	}
	own := x.at[x.group.Config.Rank]
	if own == 0 {
		return // there was no memory for it, so the group has no kernels
	}
	end, at := dl.AddressOf(x.report)+kernels.EndOffset, own+kernels.FaultOffset
	x.stopping.Go(func() {
		g := x.group.Sharing.GPU
		_ = g.Do(func() error { // where it does not come there, kernels end as they wait
			return g.Aside.Run(g, func(on cuda.Stream) error {
				return g.CUDA.MemcpyAsync(at, end, 4, on)
			})
		})
	})
}
