package binding

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"symmem"
)

// group is a group with its handle and the communicators that are attached to it.
type group struct {
	*symmem.Group
	handle      uint64
	name        string
	attachments []*attachment // guarded by rank.mu
	// machines is how many the ranks are on.
	machines int
}

// addGroup gives a group a handle and watches for its end.
func (r *rank) addGroup(g *symmem.Group, name string) *group {
	added := &group{
		Group: g, handle: r.library.handles.Add(1), name: name, machines: g.Stats().Tuning.Machines,
	}
	r.mu.Lock()
	r.groups[added.handle] = added
	r.mu.Unlock()
	r.watchers.Go(func() {
		w := r.library.words
		select {
		case <-g.Failing():
			w.Faults.Add(1)
		case <-g.Ended(): // it was closed
		}
		<-g.Ended()
		w.Pending.Add(1)
		w.Windows.Add(1)
	})
	r.library.words.Pending.Add(1)
	return added
}

// group finds a group by its handle.
func (r *rank) group(handle uint64) (*group, error) {
	r.mu.RLock()
	g := r.groups[handle]
	r.mu.RUnlock()
	if g == nil {
		return nil, r.library.unknown("group", handle)
	}
	return g, nil
}

// unknown says of a handle that stands for nothing whether it ever did.
func (l *Library) unknown(what string, handle uint64) error {
	if handle == 0 || handle > l.handles.Load() {
		return fmt.Errorf("%s %d: there never was one: %w", what, handle, symmem.ErrInvalid)
	}
	return fmt.Errorf("%s %d: %w", what, handle, symmem.ErrClosed)
}

// find returns the open rank and a group of it.
func (l *Library) find(handle uint64) (*rank, *group, error) {
	r, err := l.current()
	if err != nil {
		return nil, nil, err
	}
	g, err := r.group(handle)
	return r, g, err
}

// World returns the handle of the group of all ranks.
func (l *Library) World() (uint64, error) {
	r, err := l.current()
	if err != nil {
		return 0, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for handle, g := range r.groups {
		if g.Group == r.rt.World() {
			return handle, nil
		}
	}
	return 0, ErrNotOpen
}

// OpenGroup joins a group: collective over its ranks.
func (l *Library) OpenGroup(name string, ranks []int) (uint64, error) {
	r, err := l.current()
	if err != nil {
		return 0, err
	}
	if name == "" || len(ranks) == 0 {
		return 0, fmt.Errorf("opening group %q of %d ranks: %w", name, len(ranks), symmem.ErrInvalid)
	}
	// Ranks of one group have opened groups of its name equally often. Those of others with the
	// same name, such as every pair's, are told apart by their ranks.
	id := groupID(name, ranks)
	r.mu.Lock()
	r.names[id]++
	id = fmt.Sprintf("%s #%d", id, r.names[id])
	r.mu.Unlock()
	var g *symmem.Group
	err = l.apart("opening group "+name, func(ctx context.Context) (err error) {
		g, err = r.rt.Join(ctx, id, ranks)
		return err
	})
	if err != nil {
		return 0, err
	}
	return r.addGroup(g, name).handle, nil
}

// groupID is the id of a group of some ranks by its name. A long one, as that of many ranks, is
// shortened: its digest tells it from others.
func groupID(name string, ranks []int) string {
	const most, begin = symmem.MaxGroupID / 2, 64
	id := fmt.Sprintf("%s %v", name, ranks)
	if len(id) <= most {
		return id
	}
	return fmt.Sprintf("%.*s... %x", begin, name, sha256.Sum256([]byte(id)))
}

// CloseGroup leaves a group. Communicators that are attached are forgotten: their windows end with
// them.
func (l *Library) CloseGroup(handle uint64) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	if g.Group == r.rt.World() {
		return fmt.Errorf("closing the world: symmem_close does that: %w", symmem.ErrInvalid)
	}
	r.mu.Lock()
	delete(r.groups, handle)
	attachments := g.attachments
	g.attachments = nil
	for _, a := range attachments {
		delete(r.attachments, a.handle)
	}
	r.mu.Unlock()
	for _, a := range attachments {
		a.adopted.Forget()
	}
	return g.Close()
}

// groupDescription is what DescribeGroup returns.
type groupDescription struct {
	ID    string  `json:"id"`
	Name  string  `json:"name"`
	Rank  int     `json:"rank"`
	Size  int     `json:"size"`
	Ranks []int   `json:"ranks"`
	Error *string `json:"error"`
}

// DescribeGroup returns a group as JSON.
func (l *Library) DescribeGroup(handle uint64) (string, error) {
	_, g, err := l.find(handle)
	if err != nil {
		return "", err
	}
	d := groupDescription{
		ID: g.ID(), Name: g.name, Rank: g.Rank(), Size: g.Size(), Ranks: g.Ranks(),
	}
	if fault := g.Cause(context.Background()); fault != nil {
		text := fault.Error()
		d.Error = &text
	}
	return encode(d)
}

// GroupError returns the fault that ended a group, or nil.
func (l *Library) GroupError(handle uint64) error {
	_, g, err := l.find(handle)
	if err != nil {
		return err
	}
	return g.Cause(context.Background())
}

// AbortGroup fails a group on all its ranks.
func (l *Library) AbortGroup(handle uint64) error {
	_, g, err := l.find(handle)
	if err == nil {
		g.Abort()
	}
	return err
}

// SetPath sets who chooses the path of a group's collectives: collective.
func (l *Library) SetPath(handle uint64, path int) error {
	_, g, err := l.find(handle)
	if err != nil {
		return err
	}
	choice, err := term("path", paths, path)
	if err != nil {
		return err
	}
	return l.apart("setting the path", func(ctx context.Context) error {
		return g.SetPath(ctx, choice)
	})
}

// holds reports whether a pool's memory can be registered with the group.
func (g *group) holds(p *pool) bool {
	domain := p.Domain()
	if domain == nil {
		return false
	}
	all := domain.Ranks()
	return !slices.ContainsFunc(g.Ranks(), func(r int) bool { return !slices.Contains(all, r) })
}

// Check compares the histories of the pools whose domain holds a group: collective.
func (l *Library) Check(handle uint64) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	for _, p := range r.all() {
		if err := p.flush(); err != nil {
			return err
		}
	}
	return l.apart("comparing", g.Check)
}
