package tcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/internal/netlab"
)

// Tests in this file run ranks as processes on simulated machines: network namespaces on this host.
// Machine m runs ranks 2*m and 2*m+1. Rank 0, on machine 0, serves a store through which the ranks
// find each other. The links between machines can be slow, lossy or cut.

// After a fault, the ranks exchange reports, each of which lists the ranks that a rank has lost.

const ranksPerMachine = 2

// storePort is the TCP port of the store on machine 0.
const storePort = 29500

// TestSilentMachineIsReported cuts a machine off from the network before it kills the machine's
// processes, so that no other machine learns of their end. The others must report its ranks as lost
// because of the silence.
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
	// Each line has the machine whose ranks must report, and last the machines that they have lost.
	c.checkLost(0, begin, 2)
	c.checkLost(1, begin, 2)
	c.checkLost(2, begin, 0, 1)
}

// TestBadNetworkIsNotAFault connects two machines, whose clocks differ, with a link that delays,
// reorders and drops packets, and fails for a while. All ranks must continue.
func TestBadNetworkIsNotAFault(t *testing.T) {
	t.Parallel()
	for _, isIPv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %t", isIPv6), func(t *testing.T) {
			t.Parallel()
			lab := netlab.Config{
				Machines: 2, IPv6: isIPv6, Seed: 43, ClockStep: 5000 * time.Second,
			}
			c := newCluster(t, lab, ranksPerMachine, wanLink, machineRank{Timeout: hangTimeout})
			c.awaitRounds()
			c.lab.Set(0, 1, netlab.Link{Cut: true})
			time.AfterFunc(healedPartition, func() { c.lab.Set(0, 1, wanLink) })
			c.awaitRounds() // may end before the cut has an effect
			c.awaitRounds()
			c.finish()
		})
	}
}

// healedPartition is the length of a network partition that connections must survive. It is enough
// shorter than sys.SilenceLimit that data is sent again before the limit.
const healedPartition = 2500 * time.Millisecond

// TestPartitionWhileJoiningHeals cuts the machines off from each other before their ranks join. The
// ranks must join when the links work again, a second after all processes have started.
func TestPartitionWhileJoiningHeals(t *testing.T) {
	t.Parallel()
	c := newCluster(t, netlab.Config{Machines: 2}, ranksPerMachine, netlab.Link{Cut: true},
		machineRank{Timeout: hangTimeout})
	c.awaitAll(eventNamed(eventStarted))
	time.AfterFunc(time.Second, func() { c.lab.SetAll(lanLink) })
	c.awaitRounds()
	c.finish()
}

// TestOtherInterfaceIsUsed connects two machines with two interfaces each. The first interface of
// machine 0 is disconnected. Ranks must reach each other, and the store, through the second.
func TestOtherInterfaceIsUsed(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 2, Interfaces: 2}, ranksPerMachine)
	const machine, cutInterface, otherInterface = 0, 0, 1
	c.lab.CutInterface(machine, cutInterface)
	storeAddress := c.lab.Machines[machine].Addresses[otherInterface]
	c.start(machineRank{
		Timeout: hangTimeout,
		Store:   netip.AddrPortFrom(storeAddress, storePort).String(),
	})
	c.awaitRounds()
	c.finish()
}

// TestMissingStoreIsReported isolates machine 0, where rank 0 serves the store, before the ranks
// connect. Ranks of machine 1 know only that rank 0 does not answer, so they must report it as
// late. The ranks of machine 0 must report all ranks of machine 1.
func TestMissingStoreIsReported(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	c := newCluster(t, netlab.Config{Machines: 2}, ranksPerMachine, netlab.Link{Cut: true},
		machineRank{Timeout: timeout})
	// checkLate checks that a rank ends with an error about late ranks, and returns its last event.
	checkLate := func(rank int, late []int) machineEvent {
		c.t.Helper()
		p := c.ranks[rank]
		last, _, ok := p.await(time.Now().Add(timeout+detectionLimit), eventNamed(eventEnded))
		if !ok || last.Kind != "late" || !slices.Equal(last.Ranks, late) {
			c.t.Errorf("rank %d reports %+v; want late ranks %v: %s", rank, last, late, p.history())
		}

		return last
	}
	for _, rank := range c.ranksOf(1) {
		checkLate(rank, []int{0})
	}

	for _, rank := range c.ranksOf(0) {
		last := checkLate(rank, c.ranksOf(1))
		if want := `ranks [0 1] on "node-a"`; !strings.Contains(last.Text, want) {
			c.t.Errorf("error of rank %d does not list the ranks on each machine (%s): %s", rank, want,
				last.Text)
		}
	}
}

// TestNATIsRefused translates the address of machine 1 (node-b): other machines see another one.
// NCCL does not work then, so the ranks must refuse to join. The error must name both addresses.
func TestNATIsRefused(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 2}, ranksPerMachine)
	c.lab.TranslateAddress(1, netip.MustParseAddr("10.77.0.99"))
	c.start(machineRank{Timeout: hangTimeout})
	for _, p := range c.ranks {
		last, _, ok := p.await(time.Now().Add(hangTimeout), eventNamed(eventEnded))
		if !ok {
			c.t.Fatalf("rank %d did not end: %s", p.rank, p.history())
		}

		for _, want := range []string{"NAT", "node-a", "node-b", "10.77.0.2", "10.77.0.99"} {
			if !strings.Contains(last.Text, want) {
				c.t.Errorf("error of rank %d does not mention %q: %s", p.rank, want, last.Text)
			}
		}
	}
}
