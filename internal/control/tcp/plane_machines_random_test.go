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

// TestRandomNetworkFaults causes random faults in clusters. A cluster consists of simulated
// machines, which are network namespaces on this host. They run ranks as processes, which exchange
// data in rounds. A cluster of three machines may suffer these faults:
//
//   - Machine 2 is cut off from the network for a second. Such a fault heals, and all ranks
//     must continue. There are up to three such faults.
//   - Then machine 0 is killed. This fault does not heal. All ranks of machines 1 and 2 must report
//     ranks of machine 0 as lost. There is one such fault.
//
// If the host is too busy to simulate a cluster, its test is skipped instead of failing, and the
// cluster is not judged.

var (
	faultsFlag = flag.Int("faults", 6, "number of random network faults")
	ranksFlag  = flag.Int("machine-ranks", 2, "ranks per machine in tests with random network faults")
	seedFlag   = flag.Uint64("fault-seed", 43, "seed for random network faults")
)

// Outcomes of clusters that are counted. Clusters that succeed are not.
const (
	notJudged = "clusters not judged"
	failed    = "clusters failed"
)

// faultCounts counts the faults in all clusters, and the outcomes above.
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
	faults := 0
	text := ""
	for _, kind := range slices.Sorted(maps.Keys(f.counts)) {
		isOutcome := kind == notJudged || kind == failed
		if !isOutcome {
			faults += f.counts[kind]
		}

		text += fmt.Sprintf("; %d %s", f.counts[kind], kind)
	}

	return fmt.Sprintf("%d faults%s", faults, text)
}

// TestRandomNetworkFaults starts clusters until they have been assigned -faults faults or more.
// Each cluster suffers up to three faults that heal, and then one that does not.
func TestRandomNetworkFaults(t *testing.T) {
	const maxHealingFaults = 3
	counts := &faultCounts{counts: map[string]int{}}
	plannedFaults := 0
	clusters := 0
	t.Cleanup(func() {
		t.Logf("-fault-seed=%d: %s", *seedFlag, counts.summary())
		counts.check(t, clusters)
	})
	t.Parallel()
	for number := uint64(0); plannedFaults < *faultsFlag; number++ {
		clusters++
		r := rand.New(rand.NewPCG(*seedFlag, number))
		healingFaultCount := r.IntN(maxHealingFaults + 1)
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
		Machines:   2 + r.IntN(7), // 2 to 8
		Interfaces: 1 + r.IntN(2), // 1 or 2
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

// injectHealingFault disturbs the network for less than healedPartition, and checks that all ranks
// continue. link describes the undisturbed network.
func (c *cluster) injectHealingFault(r *rand.Rand, link netlab.Link, counts *faultCounts) {
	c.t.Helper()
	duration := time.Duration(r.Int64N(int64(healedPartition)))
	machineCount := len(c.lab.Machines)
	a := r.IntN(machineCount)
	distance := 1 + r.IntN(machineCount-1)
	b := (a + distance) % machineCount // another machine
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
		c.lab.SetMachine(a, netlab.Link{Cut: true})
	case cutLink:
		c.lab.Set(a, b, netlab.Link{Cut: true})
	case loss:
		c.lab.SetMachine(a, netlab.Link{Loss: 0.2, MaxDelay: link.MaxDelay})
	case delay:
		c.lab.SetMachine(a, netlab.Link{MaxDelay: 300 * time.Millisecond})
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
		c.lab.SetMachine(machine, netlab.Link{Cut: true})
		killDelay := time.Duration(r.Int64N(int64(time.Second)))
		time.AfterFunc(killDelay, func() { c.kill(machine) })
		c.checkMachineLost(machine, begin)
	case killedMachine:
		c.kill(machine)
		// A rank may report before all ranks of the machine have ended, and then list only some.
		for _, rank := range c.ranksOf(c.otherMachines(machine)...) {
			c.checkReport(rank, begin, machine)
		}
	case partition:
		c.lab.SetMachine(machine, netlab.Link{Cut: true})
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
