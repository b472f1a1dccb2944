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

var (
	faultsFlag = flag.Int("faults", 6, "number of random network faults")
	ranksFlag  = flag.Int("machine-ranks", 2, "ranks per machine in tests with random network faults")
	seedFlag   = flag.Uint64("fault-seed", 43, "seed for random network faults")
)

// faultCounts counts the faults in a test, and the clusters with certain outcomes.
type faultCounts struct {
	mu     sync.Mutex
	counts map[string]int // by kind of fault, notJudged or failed; guarded by mu
}

func (f *faultCounts) add(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[kind]++
}

// Outcomes of clusters. A cluster is not judged if the host was too busy.
const (
	notJudged = "clusters not judged"
	failed    = "clusters failed"
)

// check fails the test if too many clusters were not judged, because these can hide defects.
func (f *faultCounts) check(t *testing.T, clusters int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.counts[notJudged]; n > 1 && n > clusters/clustersPerUnjudged {
		t.Errorf("%d of %d clusters were not judged; want at most one in %d: repeat the test on a less "+
			"busy host, or with a smaller -test.parallel", n, clusters, clustersPerUnjudged)
	}
}

// clustersPerUnjudged is the number of clusters for each one that may be left unjudged.
const clustersPerUnjudged = 10

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

// TestRandomNetworkFaults runs clusters until it has planned -faults faults. Each cluster suffers
// up to three faults that heal, and then one that does not.
func TestRandomNetworkFaults(t *testing.T) {
	counts := &faultCounts{counts: map[string]int{}}
	planned, clusters := 0, 0
	t.Cleanup(func() {
		t.Logf("-fault-seed=%d: %s", *seedFlag, counts.summary())
		counts.check(t, clusters)
	})
	t.Parallel()
	for number := uint64(0); planned < *faultsFlag; number++ {
		clusters++
		r := rand.New(rand.NewPCG(*seedFlag, number))
		healingFaultCount := r.IntN(4)
		planned += healingFaultCount + 1
		t.Run(fmt.Sprintf("cluster %d", number), func(t *testing.T) {
			t.Parallel()
			runRandomCluster(t, r, healingFaultCount, counts)
		})
	}
}

// runRandomCluster draws a cluster and its faults from r, and checks what the ranks report.
func runRandomCluster(t *testing.T, r *rand.Rand, healingFaultCount int, counts *faultCounts) {
	cfg := netlab.Config{
		Machines: 2 + r.IntN(7), Interfaces: 1 + r.IntN(2), IPv6: r.IntN(2) == 0, Seed: r.Uint64(),
		ClockStep: time.Duration(r.IntN(10_000)) * time.Second,
	}
	maxDelays := []time.Duration{200 * time.Microsecond, 5 * time.Millisecond, 50 * time.Millisecond}
	link := netlab.Link{
		MinDelay: 100 * time.Microsecond, Loss: float64(r.IntN(2)) / 100,
		MaxDelay: maxDelays[r.IntN(len(maxDelays))],
	}
	t.Logf("%d machines with %d ranks, %+v, link %+v", cfg.Machines, *ranksFlag, cfg, link)
	rankCount := cfg.Machines * *ranksFlag
	c := newCluster(t, cfg, *ranksFlag, link, machineRank{
		Timeout: hangTimeout, Pause: time.Duration(rankCount) * 5 * time.Millisecond,
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
	length := time.Duration(r.Int64N(int64(healedPartition)))
	machineCount := len(c.lab.Machines)
	a := r.IntN(machineCount)
	b := (a + 1 + r.IntN(machineCount-1)) % machineCount // another machine
	kinds := []string{
		"healed cuts of a machine", "healed cuts of a link", "bursts of loss", "bursts of delay",
	}
	kind := kinds[r.IntN(len(kinds))]
	c.t.Logf("%s for %v: machine %d (and %d)", kind, length, a, b)
	switch kind {
	case "healed cuts of a machine":
		c.lab.Isolate(a, netlab.Link{Cut: true})
	case "healed cuts of a link":
		c.lab.Set(a, b, netlab.Link{Cut: true})
	case "bursts of loss":
		c.lab.Isolate(a, netlab.Link{Loss: 0.2, MaxDelay: link.MaxDelay})
	case "bursts of delay":
		c.lab.Isolate(a, netlab.Link{MaxDelay: 300 * time.Millisecond})
	}
	healed := make(chan struct{})
	time.AfterFunc(length, func() { c.lab.SetAll(link); close(healed) })
	<-healed
	c.awaitRounds()
	counts.add(kind)
}

// injectLastFault causes a fault that does not heal, and checks the reports of all ranks that
// survive.
func (c *cluster) injectLastFault(r *rand.Rand, counts *faultCounts) {
	c.t.Helper()
	machine := r.IntN(len(c.lab.Machines))
	kinds := []string{
		"silent machines", "killed machines", "partitions", "killed ranks", "orderly ends",
	}
	kind := kinds[r.IntN(len(kinds))]
	c.t.Logf("%s: machine %d", kind, machine)
	killedRank := -1 // no single rank
	begin := time.Now()
	switch kind {
	case "silent machines":
		c.lab.Isolate(machine, netlab.Link{Cut: true})
		time.AfterFunc(time.Duration(r.Int64N(int64(time.Second))), func() { c.kill(machine) })
	case "killed machines":
		c.kill(machine)
	case "partitions":
		c.lab.Isolate(machine, netlab.Link{Cut: true})
	case "killed ranks":
		killedRank = machine*c.local + r.IntN(c.local)
		_ = c.ranks[killedRank].command.Process.Kill()
	case "orderly ends":
		c.finish()
		counts.add(kind)
		return
	}
	for other := range c.lab.Machines {
		for _, rank := range c.ranksOf(other) {
			seesKilledMachine := kind == "killed machines" && other != machine
			seesKilledRank := killedRank >= 0 && rank != killedRank
			if !seesKilledMachine && !seesKilledRank {
				continue
			}
			e, ok := c.checkReport(rank, begin, machine)
			if ok && killedRank >= 0 && !slices.Equal(e.Ranks, []int{killedRank}) {
				c.t.Errorf("rank %d reports ranks %v; want rank %d: %s", rank, e.Ranks, killedRank, e.Text)
			}
		}
		if kind == "partitions" && other == machine {
			c.checkLost(machine, begin, c.otherMachines(machine)...)
		} else if other != machine && (kind == "partitions" || kind == "silent machines") {
			c.checkLost(other, begin, machine)
		}
	}
	counts.add(kind)
}

func (c *cluster) otherMachines(machine int) (others []int) {
	for m := range c.lab.Machines {
		if m != machine {
			others = append(others, m)
		}
	}
	return others
}
