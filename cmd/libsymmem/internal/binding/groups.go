package binding

import (
	"context"
	"fmt"

	"symmem"
)

// groups implements the functions in symmem.h that open, use and close groups.
type groups struct{ session *session }

// World returns the handle of the group of all ranks of the main world.
func (gs *groups) World() (uint64, error) {
	r, err := gs.session.mainWorldRank()
	if err != nil {
		return 0, err
	}
	return r.worldHandle, nil
}

// OpenGroup joins a group of the main world. It is collective over the group's ranks.
func (gs *groups) OpenGroup(name string, ranks []int) (uint64, error) {
	r, err := gs.session.mainWorldRank()
	if err != nil {
		return 0, err
	}
	return gs.open(r, name, ranks, symmem.GroupOptions{})
}

// OpenGroupIn joins a group of any world. If timeoutMS is 0, the world's timeout applies. It is
// collective over the group's ranks.
func (gs *groups) OpenGroupIn(
	world uint64, name string, ranks []int, timeoutMS int64,
) (uint64, error) {
	r, err := gs.session.world(world)
	if err != nil {
		return 0, err
	}
	timeout, err := parseMilliseconds("timeout_ms", timeoutMS)
	if err != nil {
		return 0, fmt.Errorf("opening group %q: %w", name, err)
	}
	return gs.open(r, name, ranks, symmem.GroupOptions{Timeout: timeout})
}

func (gs *groups) open(
	r *rank, name string, ranks []int, options symmem.GroupOptions,
) (uint64, error) {
	if name == "" || len(ranks) == 0 {
		return 0, fmt.Errorf("opening group %q of %d ranks: %w", name, len(ranks), symmem.ErrInvalid)
	}
	id := r.groupTable.nextID(name, ranks)
	var g *symmem.Group
	err := gs.session.runInterruptible("opening group "+name, func(ctx context.Context) (err error) {
		g, err = r.rt.JoinWith(ctx, id, ranks, options)
		return err
	})
	if err != nil {
		return 0, err
	}
	return r.groupTable.add(g, name), nil
}

// CloseGroup leaves a group and forgets its attached communicators. Memory registered with them
// stays registered until their owner destroys them.
func (gs *groups) CloseGroup(handle uint64) error {
	r, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}
	if handle == r.worldHandle {
		return fmt.Errorf("closing a world: call symmem_close or symmem_world_close instead: %w",
			symmem.ErrInvalid)
	}
	r.groupTable.remove(g)
	return g.Close()
}

type groupDescription struct {
	ID        string  `json:"id"`
	Name      string  `json:"name"`
	Rank      int     `json:"rank"`
	Size      int     `json:"size"`
	Ranks     []int   `json:"ranks"` // ranks of the world, in group order
	TimeoutMS int64   `json:"timeout_ms"`
	StopWord  uint64  `json:"stop_word"` // address of the word by which the host stops kernels, or 0
	Error     *string `json:"error"`
}

// DescribeGroup returns a group's description as JSON.
func (gs *groups) DescribeGroup(handle uint64) (string, error) {
	r, g, err := gs.session.group(handle)
	if err != nil {
		return "", err
	}
	d := groupDescription{
		ID: g.ID(), Name: g.name, Rank: g.Rank(), Size: g.Size(), Ranks: g.Ranks(),
		TimeoutMS: g.Timeout().Milliseconds(), StopWord: uint64(r.rt.Interop().StopWord(g.Group)),
	}
	if cause := g.Err(); cause != nil {
		text := cause.Error()
		d.Error = &text
	}
	return encode(d)
}

// GroupError returns the cause of a group's fault. It returns nil if the group has not failed, or
// if its ranks have not agreed on the cause yet.
func (gs *groups) GroupError(handle uint64) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}
	return g.Err()
}

// AbortGroup makes a group fail on all its ranks.
func (gs *groups) AbortGroup(handle uint64) error {
	_, g, err := gs.session.group(handle)
	if err == nil {
		g.Abort()
	}
	return err
}

// SetTimeout sets a group's timeout, on this rank only.
func (gs *groups) SetTimeout(handle uint64, timeoutMS int64) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}
	timeout, err := parseMilliseconds("timeout_ms", timeoutMS)
	if err != nil {
		return fmt.Errorf("setting the timeout of group %s: %w", g.ID(), err)
	}
	return g.SetTimeout(timeout)
}

// SuspendGroup releases the group's internal memory until ResumeGroup, and returns its size. It is
// collective over the group.
func (gs *groups) SuspendGroup(handle uint64) (releasedBytes int64, err error) {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return 0, err
	}
	err = gs.session.runInterruptible("suspending a group", func(ctx context.Context) error {
		suspension, err := g.Suspend(ctx)
		releasedBytes = suspension.Released
		return err
	})
	return releasedBytes, err
}

// ResumeGroup allocates the group's internal memory again. It is collective over the group.
func (gs *groups) ResumeGroup(handle uint64) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}
	return gs.session.runInterruptible("resuming a group", g.Resume)
}

// SetPath fixes the path (the implementation) that a group's collectives use, or lets symmem choose
// it. It is collective over the group.
func (gs *groups) SetPath(handle uint64, path int) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}
	pathChoice, err := parseEnum("path", paths, path)
	if err != nil {
		return err
	}
	return gs.session.runInterruptible("setting the path", func(ctx context.Context) error {
		return g.SetPath(ctx, pathChoice)
	})
}

// Check compares the allocations and frees of the group's ranks in the pools that they share. It
// is collective over the group.
func (gs *groups) Check(handle uint64) error {
	r, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}
	for _, p := range gs.session.poolTable.ownedBy(r) {
		if err := p.flush(); err != nil {
			return err
		}
	}
	return gs.session.runInterruptible("comparing histories", g.Check)
}
