package tcp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"symmem/internal/netlab"
)

const ranksPerMachine = 2

// TestSilentMachineIsReported cuts a machine off from the network before it kills the machine's
// processes, so that no other machine learns of their end.
func TestSilentMachineIsReported(t *testing.T) {
	t.Parallel()
	for machine := range 3 {
		t.Run(fmt.Sprintf("machine %d of 3", machine), func(t *testing.T) {
			t.Parallel()
			rank := machineRank{Timeout: hangTimeout}
			c := newCluster(t, netlab.Config{Machines: 3}, ranksPerMachine, lanLink, rank)
			c.awaitRounds()
			begin := time.Now()
			c.lab.Isolate(machine, netlab.Link{Cut: true})
			c.kill(machine)
			for other := range 3 {
				if other != machine {
					c.checkLost(other, begin, machine)
				}
			}
		})
	}
}

// TestPartitionReportsOtherSide cuts machine 2 off from machines 0 and 1. Ranks on each side must
// report the ranks on the other side as lost.
func TestPartitionReportsOtherSide(t *testing.T) {
	t.Parallel()
	c := newCluster(t, netlab.Config{Machines: 3}, ranksPerMachine, lanLink,
		machineRank{Timeout: hangTimeout})
	c.awaitRounds()
	begin := time.Now()
	c.lab.Isolate(2, netlab.Link{Cut: true})
	c.checkLost(0, begin, 2)
	c.checkLost(1, begin, 2)
	c.checkLost(2, begin, 0, 1)
}

// TestBadNetworkIsNotAFault connects two machines, whose clocks differ, with a link that delays,
// reorders and drops packets, and fails temporarily.
func TestBadNetworkIsNotAFault(t *testing.T) {
	t.Parallel()
	for _, isIPv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %t", isIPv6), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, netlab.Config{
				Machines: 2, IPv6: isIPv6, Seed: 43, ClockStep: 5000 * time.Second,
			}, ranksPerMachine, wanLink, machineRank{Timeout: hangTimeout})
			c.awaitRounds()
			c.lab.Set(0, 1, netlab.Link{Cut: true})
			time.AfterFunc(healedPartition, func() { c.lab.Set(0, 1, wanLink) })
			c.awaitRounds()
			c.awaitRounds()
			c.finish()
		})
	}
}

// healedPartition is the length of a network partition that connections must survive. It is enough
// shorter than sys.SilenceLimit that data is sent again before the limit.
const healedPartition = 2500 * time.Millisecond

// TestPartitionWhileJoiningHeals cuts the machines off from each other before their ranks join.
func TestPartitionWhileJoiningHeals(t *testing.T) {
	t.Parallel()
	c := newCluster(t, netlab.Config{Machines: 2}, ranksPerMachine, netlab.Link{Cut: true},
		machineRank{Timeout: hangTimeout})
	c.awaitAll(eventNamed(eventStarted))
	time.AfterFunc(time.Second, func() { c.lab.SetAll(lanLink) })
	c.awaitRounds()
	c.finish()
}

// TestOtherInterfaceIsUsed connects two machines with two interfaces each, of which the first
// interface of machine 0 is disconnected.
func TestOtherInterfaceIsUsed(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 2, Interfaces: 2}, ranksPerMachine)
	c.lab.CutInterface(0, 0)
	c.start(machineRank{
		Timeout: hangTimeout,
		Store:   netip.AddrPortFrom(c.lab.Machines[0].Addresses[1], 29500).String(),
	})
	c.awaitRounds()
	c.finish()
}

// TestMissingStoreIsReported isolates machine 0, where rank 0 serves the store, before the ranks
// connect. The ranks of machine 1 must report rank 0 as late, and the ranks of machine 0 all ranks
// of machine 1.
func TestMissingStoreIsReported(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	c := newCluster(t, netlab.Config{Machines: 2}, ranksPerMachine, netlab.Link{Cut: true},
		machineRank{Timeout: timeout})
	for _, r := range c.ranksOf(1) {
		e, _, ok := c.ranks[r].await(time.Now().Add(timeout+detectionLimit), eventNamed(eventEnded))
		if !ok || e.Kind != "late" || len(e.Ranks) != 1 || e.Ranks[0] != 0 {
			c.t.Errorf("rank %d reports %+v; want late rank 0: %s", r, e, c.ranks[r].history())
		}
	}
	for _, r := range c.ranksOf(0) {
		e, _, ok := c.ranks[r].await(time.Now().Add(timeout+detectionLimit), eventNamed(eventEnded))
		if !ok || e.Kind != "late" || fmt.Sprint(e.Ranks) != fmt.Sprint(c.ranksOf(1)) {
			c.t.Errorf("rank %d reports %+v; want late ranks %v: %s", r, e, c.ranksOf(1),
				c.ranks[r].history())
		}
		if want := `ranks [0 1] on "node-a"`; !strings.Contains(e.Text, want) {
			c.t.Errorf("error of rank %d does not list the ranks on each machine (%s): %s", r, want,
				e.Text)
		}
	}
}

// TestNATIsRefused translates the address of machine 1 (node-b).
func TestNATIsRefused(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 2}, ranksPerMachine)
	c.lab.TranslateAddress(1, netip.MustParseAddr("10.77.0.99"))
	c.start(machineRank{Timeout: hangTimeout})
	for _, p := range c.ranks {
		e, _, ok := p.await(time.Now().Add(hangTimeout), eventNamed(eventEnded))
		if !ok {
			c.t.Fatalf("rank %d did not end: %s", p.rank, p.history())
		}
		for _, want := range []string{"NAT", "node-a", "node-b", "10.77.0.2", "10.77.0.99"} {
			if !strings.Contains(e.Text, want) {
				c.t.Errorf("error of rank %d does not mention %q: %s", p.rank, want, e.Text)
			}
		}
	}
}
