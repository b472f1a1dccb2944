package drivertest

import (
	"fmt"
	"testing"

	"symmem/driver"
)

var groupRequirements = []requirement{
	{"subgroups run concurrently", testSubgroups},
	{"group ranks are numbered in the order of GroupConfig.Ranks", testGroupOrder},
	{"a group can be connected again under another name", testReconnect},
	{"connecting a group without this rank returns an error", testNotMember},
}

// checkAllGather gathers the world ranks of a group's members.
func checkAllGather(r *rank, c driver.Communicator, members []int, b buffer) {
	r.write(b.addressAt(0), []byte{byte(r.number)})
	call := driver.Call{
		Operation: driver.AllGather, DataType: driver.Uint8, Count: 1,
		Send: b.addressAt(0), Recv: b.addressAt(64), Digest: 1,
	}
	r.setStep("group %v", members)
	r.must(r.launchAndWait(c, r.stream, call))
	var want []byte
	for _, m := range members {
		want = append(want, byte(m))
	}
	r.expectBytes(b.addressAt(64), want)
}

func testSubgroups(t *testing.T, h Harness) {
	w := newWorld(t, h, 4, options{checkCalls: true})
	halves := [][]int{{0, 2}, {1, 3}}
	w.onEachRank(func(r *rank) {
		b := r.newBuffer(1 << 20)
		half := halves[r.number%2]
		c := r.connect(fmt.Sprint("half ", r.number%2), half, checkingCalls)
		for range 50 {
			checkAllGather(r, c, half, b)
			checkAllGather(r, r.group, firstNumbers(4), b)
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

func testNotMember(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{noGroup: true})
	for _, cfg := range []driver.GroupConfig{
		{ID: "empty"},
		{ID: "negative", Ranks: []int{0}, Rank: -1},
		{ID: "beyond", Ranks: []int{0}, Rank: 1},
	} {
		c, err := w.ranks[0].device.Connect(w.ctx, cfg)
		if err == nil {
			t.Errorf("connecting group %q succeeded, want an error", cfg.ID)
			must(t, c.Close())
		}
	}
}
