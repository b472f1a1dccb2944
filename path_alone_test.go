package symmem_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"symmem"
	"symmem/internal/sys/systest"
)

// isolatedVariable marks a process as a rank of TestIsolatedGPUsExplainMissingDirectPath that sees
// only one GPU. Its value is the rank.
const isolatedVariable = "SYMMEM_TEST_ALONE"

// runIsolatedRank runs this process as an isolated rank and returns its exit status.
func runIsolatedRank() int {
	if err := sumInIsolation(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return 0
}

// sumInIsolation opens the rank's Runtime, checks a sum and prints why a call does not take the
// direct path.
func sumInIsolation(ctx context.Context) error {
	number, err := strconv.Atoi(os.Getenv(isolatedVariable))
	if err != nil {
		return err
	}

	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: 2, Store: os.Getenv(storeVariable), Path: symmem.PathDirect,
		Timeout: time.Minute,
	}))
	if err != nil {
		return err
	}
	defer rt.Close() // an error does not matter, because the process ends
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: 2 * mib})
	if err != nil {
		return err
	}

	const count, elementBytes = 1024, 4
	b, err := p.Alloc(count * elementBytes)
	if err != nil {
		return err
	}

	m := b.Memory()
	explanation, err := rt.World().Explain(symmem.OpAllReduce, m, m, count, symmem.Float32)
	if err != nil {
		return err
	}

	if err := symmetricSum(ctx, rt, rt.World()); err != nil {
		return err
	}

	if n := rt.World().Stats().Paths["direct"]; n != 0 {
		return fmt.Errorf("%d collectives took the direct path, want 0", n)
	}

	_, whyNotDirect, _ := strings.Cut(explanation.Why, "; not direct: ")
	fmt.Println(whyNotDirect)
	return nil
}

// TestIsolatedGPUsExplainMissingDirectPath starts two ranks that see one GPU each, as with some
// launchers. The direct path, on which a GPU reads another's memory, is impossible: the ranks
// cannot find out how their GPUs are connected. Other paths must work. Both ranks must explain why
// the direct path is missing.
func TestIsolatedGPUsExplainMissingDirectPath(t *testing.T) {
	const ranks = 2
	runRanks(t, ranks, symmem.Options{}, func(r *rank) { // also skips the test with one GPU
		if r.Device().Addressable {
			r.skip("the backend has no GPUs", symmem.ErrUnsupported)
		}
	})
	gpus := []string{"0", "1"} // by rank, as CUDA_VISIBLE_DEVICES names them
	if visible := os.Getenv("CUDA_VISIBLE_DEVICES"); visible != "" {
		gpus = strings.Split(visible, ",")
	}

	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	for number := range ranks {
		// The child is this program: TestMain calls runIsolatedRank if isolatedVariable is set.
		c := systest.Command(t, systest.Patience, os.Args[0])
		c.Env = append(os.Environ(), storeVariable+"="+store,
			isolatedVariable+"="+strconv.Itoa(number), "CUDA_VISIBLE_DEVICES="+gpus[number])
		out := &bytes.Buffer{}
		c.Stdout, c.Stderr = out, out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}

		processes = append(processes, c)
	}

	var reports []string
	for number, c := range processes {
		err := c.Wait()
		report := c.Stdout.(*bytes.Buffer).String()
		const want = "this process cannot see GPU"
		if err != nil || !strings.Contains(report, want) {
			t.Errorf("rank %d: got error %v and report %q, want a report that contains %q", number, err,
				report, want)
		}

		reports = append(reports, report)
	}

	if reports[0] != reports[1] {
		t.Errorf("got the reasons %q, want the same one on both ranks", reports)
	}
}
