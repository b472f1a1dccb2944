package tcp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"symmem/internal/netlab"
)

// TestSilentMachineIsReported cuts a machine off from the network before it kills the machine's
// processes, so that no other machine learns of their end.
func TestSilentMachineIsReported(t *testing.T) {
	t.Parallel()
	for machine := range 3 {
		t.Run(fmt.Sprintf("machine %d of 3", machine), func(t *testing.T) {
			t.Parallel()
			rank := machineRank{Timeout: hangTimeout}
			c := newCluster(t, netlab.Config{Machines: 3}, 2, lanLink, rank)
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

func TestPartitionReportsOtherSide(t *testing.T) {
	t.Parallel()
	c := newCluster(t, netlab.Config{Machines: 3}, 2, lanLink, machineRank{Timeout: hangTimeout})
	c.awaitRounds()
	begin := time.Now()
	c.lab.Isolate(2, netlab.Link{Cut: true})
	c.checkLost(0, begin, 2)
	c.checkLost(1, begin, 2)
	c.checkLost(2, begin, 0, 1)
}

// The link between two machines, whose clocks differ, delays, reorders and drops packets, and fails
// temporarily.
func TestBadNetworkIsNotAFault(t *testing.T) {
	t.Parallel()
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %t", v6), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, netlab.Config{
				Machines: 2, IPv6: v6, Seed: 43, ClockStep: 5000 * time.Second,
			}, 2, wanLink, machineRank{Timeout: hangTimeout})
			c.awaitRounds()
			c.lab.Set(0, 1, netlab.Link{Cut: true})
			time.AfterFunc(healedPartition, func() { c.lab.Set(0, 1, wanLink) })
			c.awaitRounds()
			c.awaitRounds()
			c.finish()
		})
	}
}

// healedPartition is the length of a network partition that connections must survive. It is shorter
// than sys.SilenceLimit, so that data is sent again before the limit.
const healedPartition = 2500 * time.Millisecond

// TestPartitionWhileJoiningHeals cuts the machines off from each other before their ranks join.
func TestPartitionWhileJoiningHeals(t *testing.T) {
	t.Parallel()
	c := newCluster(t, netlab.Config{Machines: 2}, 2, netlab.Link{Cut: true},
		machineRank{Timeout: hangTimeout})
	c.awaitAll(eventNamed(eventStarted))
	time.AfterFunc(time.Second, func() { c.lab.SetAll(lanLink) })
	c.awaitRounds()
	c.finish()
}

// Each machine has two interfaces, and one machine's first interface is disconnected.
func TestOtherInterfaceIsUsed(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 2, Interfaces: 2}, 2)
	c.lab.CutInterface(0, 0)
	c.start(machineRank{
		Timeout: hangTimeout,
		Store:   netip.AddrPortFrom(c.lab.Machines[0].Addresses[1], 29500).String(),
	})
	c.awaitRounds()
	c.finish()
}

// TestMissingStoreIsReported isolates the machine that serves the store before the ranks connect.
func TestMissingStoreIsReported(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	c := newCluster(t, netlab.Config{Machines: 2}, 2, netlab.Link{Cut: true},
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

func TestNATIsRefused(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 2}, 2)
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
