package drivertest

import (
	"fmt"
	"testing"

	"symmem/driver"
)

var groupContracts = []contract{
	{"groups of some of the ranks work at the same time", proveSubgroups},
	{"the order of a group is that of its list of ranks", proveGroupOrder},
	{"a group can be connected again under another name", proveReconnect},
	{"a group without this rank is an error", proveNotMember},
}

// gatherBytes makes a rank contribute its world number to an AllGather, and checks what comes.
func gatherBytes(r *rank, c driver.Communicator, members []int, b buffer) error {
	if err := r.write(b.at(0), []byte{byte(r.number)}); err != nil {
		return err
	}
	call := driver.Call{
		Operation: driver.AllGather, DataType: driver.Uint8, Count: 1,
		Send: b.at(0), Recv: b.at(64), Digest: 1,
	}
	if err := r.launch(c, r.stream, call); err != nil {
		return err
	}
	want := make([]byte, 0, len(members))
	for _, m := range members {
		want = append(want, byte(m))
	}
	if err := r.expect(b.at(64), want); err != nil {
		return fmt.Errorf("group %v: %w", members, err)
	}
	return nil
}

// proveSubgroups has every rank in one of two halves and in the group of all. The groups of a
// rank are used in turn, those of different ranks at the same time.
func proveSubgroups(t *testing.T, h Harness) {
	w := newWorld(t, h, 4, options{check: true})
	halves := [][]int{{0, 2}, {1, 3}}
	must(t, w.each(func(r *rank) error {
		b, err := r.newBuffer(1 << 20)
		if err != nil {
			return err
		}
		half := halves[r.number%2]
		c, err := r.connect(fmt.Sprint("half ", r.number%2), half, true)
		if err != nil {
			return err
		}
		for range 50 {
			if err := gatherBytes(r, c, half, b); err != nil {
				return err
			}
			if err := gatherBytes(r, r.group, numbers(4), b); err != nil {
				return err
			}
		}
		return nil
	}))
}

func proveGroupOrder(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{apart: true})
	must(t, w.each(func(r *rank) error {
		b, err := r.newBuffer(1 << 20)
		if err != nil {
			return err
		}
		members := []int{2, 0, 1}
		c, err := r.connect("turned", members, true)
		if err != nil {
			return err
		}
		return gatherBytes(r, c, members, b)
	}))
}

func proveReconnect(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{apart: true})
	must(t, w.each(func(r *rank) error {
		b, err := r.newBuffer(1 << 20)
		if err != nil {
			return err
		}
		for generation := range 3 {
			c, err := r.connect(fmt.Sprint("generation ", generation), numbers(2), true)
			if err != nil {
				return err
			}
			if err := gatherBytes(r, c, numbers(2), b); err != nil {
				return err
			}
			if err := c.Close(); err != nil {
				return err
			}
		}
		return nil
	}))
}

func proveNotMember(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{apart: true})
	for _, cfg := range []driver.GroupConfig{
		{ID: "nobody"},
		{ID: "negative", Ranks: []int{0}, Rank: -1},
		{ID: "beyond", Ranks: []int{0}, Rank: 1},
	} {
		c, err := w.ranks[0].device.Connect(w.ctx, cfg)
		if err == nil {
			t.Errorf("connecting group %q gave no error", cfg.ID)
			must(t, c.Close())
		}
	}
}
