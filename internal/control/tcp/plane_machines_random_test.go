package tcp

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"symmem/internal/netlab"
)

// The test in this file uses a cluster: ranks as processes on simulated machines, which are network
// namespaces on this host. Ranks run rounds of exchanges until a fault occurs. If the host is too
// busy to simulate the network, a failure of a cluster skips its test instead.

var (
	faultsFlag = flag.Int("faults", 6, "number of random network faults")
	ranksFlag  = flag.Int("machine-ranks", 2, "ranks per machine in tests with random network faults")
	seedFlag   = flag.Uint64("fault-seed", 43, "seed for random network faults")
)

// faultCounts counts the faults in a test, and the clusters with certain outcomes.
type faultCounts struct {
	mu     sync.Mutex
	counts map[string]int // by kind of fault or outcome; guarded by mu
}

// add counts one more fault or outcome.
func (f *faultCounts) add(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[kind]++
}

// Outcomes of clusters. A cluster is not judged, and its test is skipped, if the host was too busy.
const (
	notJudged = "clusters not judged"
	failed    = "clusters failed"
)

// clustersPerUnjudged is the number of clusters for each one that may be left unjudged.
const clustersPerUnjudged = 10

// check fails the test if too many clusters were not judged, because these can hide defects. One
// is always permitted.
func (f *faultCounts) check(t *testing.T, clusters int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	limit := max(1, clusters/clustersPerUnjudged)
	if n := f.counts[notJudged]; n > limit {
		t.Errorf("%d of %d clusters were not judged; want at most %d: repeat the test on a less "+
			"busy host, or with a smaller -test.parallel", n, clusters, limit)
	}
}

// summary returns the number of faults and all counts, such as "3 faults; 1 killed ranks; 2
// partitions".
func (f *faultCounts) summary() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	faults, text := 0, ""
	for _, kind := range slices.Sorted(maps.Keys(f.counts)) {
		if kind != notJudged && kind != failed {
			faults += f.counts[kind]
		}

		text += fmt.Sprintf("; %d %s", f.counts[kind], kind)
	}

	return fmt.Sprintf("%d faults%s", faults, text)
}

// TestRandomNetworkFaults runs clusters of simulated machines until it has planned -faults faults.
// Each cluster suffers up to three faults that heal, and then one that does not.
func TestRandomNetworkFaults(t *testing.T) {
	counts := &faultCounts{counts: map[string]int{}}
	plannedFaults, clusters := 0, 0
	t.Cleanup(func() {
		t.Logf("-fault-seed=%d: %s", *seedFlag, counts.summary())
		counts.check(t, clusters)
	})
	t.Parallel()
	for number := uint64(0); plannedFaults < *faultsFlag; number++ {
		clusters++
		r := rand.New(rand.NewPCG(*seedFlag, number))
		healingFaultCount := r.IntN(3 + 1)
		plannedFaults += healingFaultCount + 1
		t.Run(fmt.Sprintf("cluster %d", number), func(t *testing.T) {
			t.Parallel()
			runRandomCluster(t, r, healingFaultCount, counts)
		})
	}
}

// runRandomCluster draws a cluster and its faults from r, and checks what the ranks report.
func runRandomCluster(t *testing.T, r *rand.Rand, healingFaultCount int, counts *faultCounts) {
	cfg := netlab.Config{
		Machines:   2 + r.IntN(7),
		Interfaces: 1 + r.IntN(2),
		IPv6:       r.IntN(2) == 0,
		Seed:       r.Uint64(),
		ClockStep:  time.Duration(r.IntN(10_000)) * time.Second, // between clocks of machines
	}
	maxDelays := []time.Duration{200 * time.Microsecond, 5 * time.Millisecond, 50 * time.Millisecond}
	link := netlab.Link{
		MinDelay: 100 * time.Microsecond,
		Loss:     float64(r.IntN(2)) / 100, // none or 1%
		MaxDelay: maxDelays[r.IntN(len(maxDelays))],
	}
	t.Logf("%d machines with %d ranks, %+v, link %+v", cfg.Machines, *ranksFlag, cfg, link)
	rankCount := cfg.Machines * *ranksFlag
	c := newCluster(t, cfg, *ranksFlag, link, machineRank{
		Timeout: hangTimeout,
		// With more ranks, rounds are more work for the host, so there are fewer of them.
		Pause: time.Duration(rankCount) * 5 * time.Millisecond,
	})
	t.Cleanup(func() {
		if t.Skipped() {
			counts.add(notJudged)
		}

		if t.Failed() {
			counts.add(failed)
		}
	})
	c.awaitAll(eventNamed(eventJoined))
	for range healingFaultCount {
		c.injectHealingFault(r, link, counts)
	}

	c.awaitRounds()
	c.injectLastFault(r, counts)
}

// injectHealingFault disturbs the network for a while, and checks that all ranks continue. link
// describes the undisturbed network.
func (c *cluster) injectHealingFault(r *rand.Rand, link netlab.Link, counts *faultCounts) {
	c.t.Helper()
	duration := time.Duration(r.Int64N(int64(healedPartition)))
	machineCount := len(c.lab.Machines)
	a := r.IntN(machineCount)
	b := (a + 1 + r.IntN(machineCount-1)) % machineCount // another machine
	const (
		cutMachine = "healed cuts of a machine"
		cutLink    = "healed cuts of a link"
		loss       = "bursts of loss"
		delay      = "bursts of delay"
	)
	kinds := []string{cutMachine, cutLink, loss, delay}
	kind := kinds[r.IntN(len(kinds))]
	c.t.Logf("%s for %v: machine %d (and %d)", kind, duration, a, b)
	switch kind {
	case cutMachine:
		c.lab.Isolate(a, netlab.Link{Cut: true})
	case cutLink:
		c.lab.Set(a, b, netlab.Link{Cut: true})
	case loss:
		c.lab.Isolate(a, netlab.Link{Loss: 0.2, MaxDelay: link.MaxDelay})
	case delay:
		c.lab.Isolate(a, netlab.Link{MaxDelay: 300 * time.Millisecond})
	}

	<-time.After(duration)
	c.lab.SetAll(link)
	c.awaitRounds() // fails the test unless all ranks complete more rounds
	counts.add(kind)
}

// Kinds of faults that do not heal.
const (
	silentMachine = "silent machines" // cut off from the network, and killed soon after
	killedMachine = "killed machines"
	partition     = "partitions" // a machine is cut off, but its ranks continue
	killedRank    = "killed ranks"
	orderlyEnd    = "orderly ends" // no fault
)

// injectLastFault causes a fault that does not heal, and checks the reports of all ranks that
// survive.
func (c *cluster) injectLastFault(r *rand.Rand, counts *faultCounts) {
	c.t.Helper()
	machine := r.IntN(len(c.lab.Machines))
	kinds := []string{silentMachine, killedMachine, partition, killedRank, orderlyEnd}
	kind := kinds[r.IntN(len(kinds))]
	c.t.Logf("%s: machine %d", kind, machine)
	begin := time.Now()
	switch kind {
	case silentMachine:
		c.lab.Isolate(machine, netlab.Link{Cut: true})
		time.AfterFunc(time.Duration(r.Int64N(int64(time.Second))), func() { c.kill(machine) })
		c.checkMachineLost(machine, begin)
	case killedMachine:
		c.kill(machine)
		// Ranks may report before all ranks of the machine have ended, so they may list only some.
		for _, rank := range c.ranksOf(c.otherMachines(machine)...) {
			c.checkReport(rank, begin, machine)
		}
	case partition:
		c.lab.Isolate(machine, netlab.Link{Cut: true})
		c.checkMachineLost(machine, begin)
		c.checkLost(machine, begin, c.otherMachines(machine)...)
	case killedRank:
		rank := machine*c.local + r.IntN(c.local)
		_ = c.ranks[rank].command.Process.Kill()
		c.checkOnlyRankLost(rank, begin)
	case orderlyEnd:
		c.finish() // fails the test unless all ranks end without an error
	}

	counts.add(kind)
}

// checkMachineLost checks that the ranks of all other machines report all ranks of a machine, and
// no others.
func (c *cluster) checkMachineLost(machine int, begin time.Time) {
	c.t.Helper()
	for _, other := range c.otherMachines(machine) {
		c.checkLost(other, begin, machine)
	}
}

// checkOnlyRankLost checks that all other ranks report the lost rank, and no others.
func (c *cluster) checkOnlyRankLost(lost int, begin time.Time) {
	c.t.Helper()
	for rank := range c.ranks {
		if rank == lost {
			continue
		}

		e, ok := c.checkReport(rank, begin, lost/c.local)
		if ok && !slices.Equal(e.Ranks, []int{lost}) {
			c.t.Errorf("rank %d reports ranks %v; want [%d]: %s", rank, e.Ranks, lost, e.Text)
		}
	}
}

// otherMachines lists all machines but one.
func (c *cluster) otherMachines(machine int) (others []int) {
	for m := range c.lab.Machines {
		if m != machine {
			others = append(others, m)
		}
	}

	return others
}
