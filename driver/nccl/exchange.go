package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
)

// exchange is the memory of a group that the ranks' kernels write to each other, as this rank
// has it mapped, and where its kernels report faults.
type exchange struct {
	// at is by group rank. It is written before the group is used, and when that has ended, guarded
	// by mu.
	at [kernels.MaxRanks]uintptr
	// multiprocessors is how many the kernels of every rank can count on.
	multiprocessors int

	mu ranked.Mutex[exchangeMu]
	// report is where kernels and the host speak; once it is given back, last is what it said. Both
	// are guarded by mu.
	report *kernels.Report
	last   kernels.Report
}

// reported returns what a kernel has reported, and reports whether one has.
func (x *exchange) reported() (kernels.Report, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.report != nil {
		return x.report.Read()
	}
	return x.last.Read()
}

// places are where kernels find the memory of all ranks, and where they report. A group that has
// ended has none.
func (x *exchange) places() (at [kernels.MaxRanks]uintptr, report uintptr, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.report == nil {
		return at, 0, driver.ErrClosed
	}
	return x.at, dl.AddressOf(x.report), nil
}

// equipment is what a rank tells the others before a group gets its exchange memory.
type equipment struct {
	// Why says why the rank has none; empty if it has.
	Why string `json:"why,omitempty"`
	// Multiprocessors is how many of its GPU its kernels can count on.
	Multiprocessors int `json:"multiprocessors,omitempty"`
	// Fabric is the handle of its memory, where descriptors do not reach.
	Fabric []byte `json:"fabric,omitempty"`
}

// openExchange makes the exchange memory of the group: on all ranks or on none. It returns an
// error only if the ranks could not agree; a group without has its reason. Groups that cannot
// have any for reasons that all ranks know alike skip the exchanges.
func (c *communicator) openExchange(ctx context.Context) error {
	ranks := len(c.cfg.Ranks)
	switch {
	case ranks == 1:
		c.direct.none = "the group has one rank"
		return nil
	case ranks > kernels.MaxRanks:
		c.direct.none = fmt.Sprintf("the group has %d ranks: %d are the most", ranks, kernels.MaxRanks)
		return nil
	case c.loans.Apart:
		if c.direct.none = c.withoutFabric(); c.direct.none != "" {
			return nil
		}
	}
	key := handoff.Key{Space: handoff.Space("exchange/" + c.cfg.ID)}
	mine, withdraw := c.prepareExchange(key)
	defer withdraw()
	all, err := c.agreeOnExchange(ctx, &mine)
	if err != nil || c.direct.none != "" {
		return err
	}
	mine.Why = ""
	if err := c.mapExchange(ctx, key, all); err != nil {
		mine.Why = err.Error()
	}
	_, err = c.agreeOnExchange(ctx, &mine)
	return err
}

// withoutFabric says why ranks that are apart cannot map each other's memory; it is empty if they
// may be able to. All ranks say the same.
func (c *communicator) withoutFabric() string {
	where := "in several containers"
	if m := machines(c.members); m > 1 {
		where = fmt.Sprintf("on %d machines", m)
	}
	for i, m := range c.members {
		if m.NoFabric != "" {
			return fmt.Sprintf("the ranks are %s, and rank %d has no fabric handles: %s", where,
				c.cfg.Ranks[i], control.Printable(m.NoFabric))
		}
	}
	return ""
}

// agreeOnExchange tells the others what this rank has, and takes the first reason against it.
func (c *communicator) agreeOnExchange(
	ctx context.Context, mine *equipment,
) ([]equipment, error) {
	encoded, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	told, err := c.plane.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return nil, err
	}
	all := make([]equipment, len(told))
	c.direct.exchange.multiprocessors = mine.Multiprocessors
	for r := range all {
		theirs := &all[r]
		if err := json.Unmarshal(told[r], theirs); err != nil {
			return nil, fmt.Errorf("reading what rank %d has: %w", c.cfg.Ranks[r], err)
		}
		if theirs.Why != "" && c.direct.none == "" {
			c.direct.none = fmt.Sprintf("rank %d: %s", c.cfg.Ranks[r], control.Printable(theirs.Why))
		}
		c.direct.exchange.multiprocessors = min(c.direct.exchange.multiprocessors, theirs.Multiprocessors)
	}
	return all, nil
}

// prepareExchange makes this rank's own memory and offers it to the others until withdraw is
// called.
func (c *communicator) prepareExchange(key handoff.Key) (mine equipment, withdraw func()) {
	d, x := c.device, &c.direct.exchange
	withdraw = func() {}
	err := d.linked(c.members)
	if err == nil {
		err = d.gpu.Do(func() (err error) {
			if err = d.collectives.Load(d.gpu); err != nil {
				return err
			}
			count, err := d.gpu.Attribute(cuda.AttributeMultiprocessorCount)
			if err != nil {
				return err
			}
			mine.Multiprocessors = max(1, count/sharers(c.members, &d.self))
			report, err := d.reports.Take(d.gpu.CUDA)
			if err != nil {
				return err
			}
			x.mu.Lock()
			x.report = report
			x.mu.Unlock()
			handle, err := d.gpu.CUDA.Create(kernels.ExchangeBytes,
				cuda.PinnedMemory(d.gpu.Device, d.gpu.Prop.RequestedHandles, false))
			if err != nil {
				return err
			}
			defer d.gpu.Release(handle)
			if x.at[c.cfg.Rank], err = d.gpu.Map(handle, kernels.ExchangeBytes); err != nil {
				return err
			}
			if err := d.gpu.Aside.Zero(d.gpu, x.at[c.cfg.Rank], kernels.ExchangeBytes); err != nil {
				return err
			}
			lent, err := c.loans.Lend(key, handle)
			mine.Fabric, withdraw = lent.Fabric, lent.Withdraw
			return err
		})
	}
	if err != nil {
		mine.Why = err.Error()
	}
	return mine, withdraw
}

// mapExchange maps the memory of the other ranks.
func (c *communicator) mapExchange(
	ctx context.Context, key handoff.Key, all []equipment,
) error {
	x := &c.direct.exchange
	for r, rank := range c.cfg.Ranks {
		if r == c.cfg.Rank {
			continue
		}
		at, err := c.loans.Borrow(ctx, rank, key, all[r].Fabric, kernels.ExchangeBytes)
		if err != nil {
			return err
		}
		x.at[r] = at
	}
	return nil
}

// close gives the memory back. No kernel of the group runs any more, nor will one.
func (x *exchange) close(d *Device) error {
	if gpu.Stuck.Load() {
		return nil
	}
	err := d.gpu.Do(func() error {
		var errs []error
		for _, at := range x.at {
			if at != 0 {
				errs = append(errs, d.gpu.Unmap(at, kernels.ExchangeBytes))
			}
		}
		return errors.Join(errs...)
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	x.at = [kernels.MaxRanks]uintptr{}
	if x.report != nil {
		x.last, _ = x.report.Read()
		d.reports.Put(x.report)
		x.report = nil
	}
	return err
}

// stop ends the kernels of this rank that wait for others, and those to come. It waits for nothing.
func (x *exchange) stop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.report != nil {
		x.report.End()
	}
}
