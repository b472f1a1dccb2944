package drivertest

import (
	"fmt"
	"testing"

	"symmem/driver"
)

// A group contains some of a world's ranks, in any order. In the group [2 0 1], rank 2 of the world
// has group rank 0. All members of a group call r.connect to create it.

var groupRequirements = []requirement{
	{"subgroups run concurrently", testSubgroups},
	{"group ranks are numbered in the order of GroupConfig.Ranks", testGroupOrder},
	{"a group can be connected again under another name", testReconnect},
	{"connecting a group without this rank returns an error", testNotMember},
}

// checkAllGather checks that the members of group c can gather their numbers.
func checkAllGather(r *rank, c driver.Communicator, members []int, b buffer) {
	input := b.addressAt(0)
	output := b.addressAt(64) // behind the 1-byte input
	r.write(input, []byte{byte(r.number)})
	call := driver.Call{
		Operation: driver.AllGather, DataType: driver.Uint8, Count: 1,
		Send: input, Recv: output, Digest: 1,
	}
	r.setStep("group %v", members)
	r.must(r.launchAndWait(c, r.stream, call))
	var want []byte
	for _, number := range members {
		want = append(want, byte(number))
	}

	r.expectBytes(output, want)
}

func testSubgroups(t *testing.T, h Harness) {
	w := newWorld(t, h, 4, options{checkCalls: true})
	halves := [][]int{{0, 2}, {1, 3}}
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(1 << 20)
		half := r.number % 2
		c := r.connect(fmt.Sprint("half ", half), halves[half], checkingCalls)
		for range 50 {
			checkAllGather(r, c, halves[half], b)
			checkAllGather(r, r.group, firstNumbers(4), b) // all ranks
		}
	})
}

func testGroupOrder(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{noGroup: true})
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(1 << 20)
		members := []int{2, 0, 1}
		c := r.connect("reordered", members, checkingCalls)
		checkAllGather(r, c, members, b)
	})
}

func testReconnect(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{noGroup: true})
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(1 << 20)
		for generation := range 3 {
			c := r.connect(fmt.Sprint("generation ", generation), firstNumbers(2), checkingCalls)
			checkAllGather(r, c, firstNumbers(2), b)
			r.must(c.Close())
		}
	})
}

// GroupConfig.Rank must be the caller's index in Ranks.
func testNotMember(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{noGroup: true})
	configs := []driver.GroupConfig{
		{ID: "empty"},
		{ID: "negative", Ranks: []int{0}, Rank: -1},
		{ID: "beyond", Ranks: []int{0}, Rank: 1},
	}
	for _, cfg := range configs {
		c, err := w.ranks[0].device.Connect(w.ctx, cfg)
		if err == nil {
			t.Errorf("connecting group %q succeeded, want an error", cfg.ID)
			must(t, c.Close())
		}
	}
}
