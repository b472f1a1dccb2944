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

// Ranks run as processes on machines that network namespaces on this host simulate. Rank 0 on
// machine 0 also serves the store through which ranks find each other.

const (
	ranksPerMachine = 2
	storePort       = 29500
)

// Killed processes cannot close their connections, because the network is cut before.
func TestSilentMachineIsReported(t *testing.T) {
	t.Parallel()
	for machine := range 3 {
		t.Run(fmt.Sprintf("machine %d of 3", machine), func(t *testing.T) {
			t.Parallel()
			rank := machineRank{Timeout: hangTimeout}
			c := newCluster(t, netlab.Config{Machines: 3}, ranksPerMachine, lanLink, rank)
			c.awaitRounds()
			begin := time.Now()
			c.lab.SetMachine(machine, netlab.Link{Cut: true})
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
	c := newCluster(t, netlab.Config{Machines: 3}, ranksPerMachine, lanLink,
		machineRank{Timeout: hangTimeout})
	c.awaitRounds()
	begin := time.Now()
	const isolated = 2
	c.lab.SetMachine(isolated, netlab.Link{Cut: true})
	c.checkLost(0, begin, isolated)
	c.checkLost(1, begin, isolated)
	c.checkLost(isolated, begin, 0, 1)
}

// A group survives different clocks, lost and reordered packets, and a short partition.
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
			c.awaitRounds() // rounds that were in progress may still complete
			c.awaitRounds() // these complete only after the partition
			c.finish()
		})
	}
}

// healedPartition leaves time for a retransmission before sys.SilenceLimit.
const healedPartition = 2500 * time.Millisecond

func TestPartitionWhileJoiningHeals(t *testing.T) {
	t.Parallel()
	c := newCluster(t, netlab.Config{Machines: 2}, ranksPerMachine, netlab.Link{Cut: true},
		machineRank{Timeout: hangTimeout})
	c.awaitAll(eventNamed(eventStarted))
	time.AfterFunc(time.Second, func() { c.lab.SetAll(lanLink) })
	c.awaitRounds()
	c.finish()
}

// Ranks reach a machine through its second interface if the first is disconnected.
func TestOtherInterfaceIsUsed(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 2, Interfaces: 2}, ranksPerMachine)
	const machine = 0
	const cutInterface, otherInterface = 0, 1
	c.lab.CutInterface(machine, cutInterface)
	storeAddress := c.lab.Machines[machine].Addresses[otherInterface]
	c.start(machineRank{
		Timeout: hangTimeout,
		Store:   netip.AddrPortFrom(storeAddress, storePort).String(),
	})
	c.awaitRounds()
	c.finish()
}

// Ranks on machine 1 never reach the store of rank 0, so they report only that rank as late.
func TestMissingStoreIsReported(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	c := newCluster(t, netlab.Config{Machines: 2}, ranksPerMachine, netlab.Link{Cut: true},
		machineRank{Timeout: timeout})
	// checkLate checks that a rank ends with an error about late ranks, and returns this event.
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

// Ranks refuse to join through NAT, with which NCCL does not work.
func TestNATIsRefused(t *testing.T) {
	t.Parallel()
	c := newIdleCluster(t, netlab.Config{Machines: 2}, ranksPerMachine)
	const realAddress, translatedAddress = "10.77.0.2", "10.77.0.99"
	c.lab.TranslateAddress(1, netip.MustParseAddr(translatedAddress))
	c.start(machineRank{Timeout: hangTimeout})
	for _, p := range c.ranks {
		last, _, ok := p.await(time.Now().Add(hangTimeout), eventNamed(eventEnded))
		if !ok {
			c.t.Fatalf("rank %d did not end: %s", p.rank, p.history())
		}

		wantTexts := []string{"NAT", "node-a", "node-b", realAddress, translatedAddress}
		for _, want := range wantTexts {
			if !strings.Contains(last.Text, want) {
				c.t.Errorf("error of rank %d does not mention %q: %s", p.rank, want, last.Text)
			}
		}
	}
}
