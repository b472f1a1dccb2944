package binding

import (
	"context"
	"fmt"

	"symmem"
)

// groups implements the functions in symmem.h for groups of a world's ranks. A call that is
// collective over a group must be made by all ranks of the group.
type groups struct{ session *session }

// World returns the handle of the group of all ranks of the main world.
func (gs *groups) World() (uint64, error) {
	r, err := gs.session.mainWorldRank()
	if err != nil {
		return 0, err
	}

	return r.worldHandle, nil
}

// OpenGroup opens a group of the given ranks of the main world, and returns its handle. It is
// collective over the group.
func (gs *groups) OpenGroup(name string, ranks []int) (uint64, error) {
	r, err := gs.session.mainWorldRank()
	if err != nil {
		return 0, err
	}

	return gs.open(r, name, ranks, symmem.GroupOptions{})
}

// OpenGroupIn is like OpenGroup, but for any world. A timeoutMS of 0 stands for the world's
// timeout.
func (gs *groups) OpenGroupIn(
	world uint64, name string, ranks []int, timeoutMS int64,
) (uint64, error) {
	r, err := gs.session.worldRank(world)
	if err != nil {
		return 0, err
	}

	timeout, err := timeoutOf(timeoutMS)
	if err != nil {
		return 0, fmt.Errorf("opening group %q: %w", name, err)
	}

	return gs.open(r, name, ranks, symmem.GroupOptions{Timeout: timeout})
}

func (gs *groups) open(
	r *rank, name string, ranks []int, options symmem.GroupOptions,
) (uint64, error) {
	if name == "" {
		return 0, fmt.Errorf("opening a group of %d ranks: the name is empty: %w", len(ranks),
			symmem.ErrInvalid)
	}

	if len(ranks) == 0 {
		return 0, fmt.Errorf("opening group %q: the list of ranks is empty: %w", name,
			symmem.ErrInvalid)
	}

	id := r.groupTable.nextID(name, ranks)
	join := func(ctx context.Context) (*symmem.Group, error) {
		return r.rt.JoinWith(ctx, id, ranks, options)
	}
	joined, err := getInterruptible(&gs.session.interrupts, "opening group "+name, join)
	if err != nil {
		return 0, err
	}

	return r.groupTable.add(joined, name), nil
}

// CloseGroup closes a group on this rank. It removes the group's attachments, but does not
// deregister memory from their communicators.
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
	Ranks     []int   `json:"ranks"` // ranks of the world, in order of their ranks in the group
	TimeoutMS int64   `json:"timeout_ms"`
	StopWord  uint64  `json:"stop_word"` // address at which the host writes to stop kernels, or 0
	Error     *string `json:"error"`     // why the group has failed, or null
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

// GroupError returns the error with which a group has failed, or nil.
func (gs *groups) GroupError(handle uint64) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}

	return g.Err()
}

// AbortGroup makes a group fail with ErrAborted on all its ranks.
func (gs *groups) AbortGroup(handle uint64) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}

	g.Abort()
	return nil
}

// SetTimeout sets a group's timeout, on this rank only.
func (gs *groups) SetTimeout(handle uint64, timeoutMS int64) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}

	timeout, err := timeoutOf(timeoutMS)
	if err != nil {
		return fmt.Errorf("setting the timeout of group %s: %w", g.ID(), err)
	}

	return g.SetTimeout(timeout)
}

// SuspendGroup releases the group's internal memory until ResumeGroup, and returns the size of this
// memory in bytes. It is collective over the group.
func (gs *groups) SuspendGroup(handle uint64) (int64, error) {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return 0, err
	}

	suspension, err := getInterruptible(&gs.session.interrupts, "suspending a group", g.Suspend)
	return suspension.Released, err
}

// ResumeGroup allocates the group's internal memory again. It is collective over the group.
func (gs *groups) ResumeGroup(handle uint64) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}

	return gs.session.runInterruptible("resuming a group", g.Resume)
}

// SetPath selects the path (the implementation) of a group's collectives, by a SYMMEM_PATH_*
// constant of symmem.h. It is collective over the group.
func (gs *groups) SetPath(handle uint64, path int) error {
	_, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}

	choice, err := parseEnum("path", paths, path)
	if err != nil {
		return err
	}

	return gs.session.runInterruptible("setting the path", func(ctx context.Context) error {
		return g.SetPath(ctx, choice)
	})
}

// Check completes delayed frees. It then returns an error if the histories of allocations and frees
// in shared pools differ between the group's ranks. It is collective over the group.
func (gs *groups) Check(handle uint64) error {
	r, g, err := gs.session.group(handle)
	if err != nil {
		return err
	}

	for _, p := range gs.session.poolTable.ownedBy(r) {
		if err := p.freeRetired(); err != nil {
			return err
		}
	}

	return gs.session.runInterruptible("comparing histories", g.Check)
}
