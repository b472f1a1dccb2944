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

// Some launchers let each rank see only one GPU: CUDA_VISIBLE_DEVICES is 0 for rank 0, and 1 for
// rank 1. Such a rank is isolated: it cannot find out how the GPUs of the ranks are connected.
// Therefore its calls cannot take the direct path, on which a GPU reads the memory of another.
//
// The test starts this program twice, as two isolated ranks. Each prints a reason: why its calls do
// not take the direct path.

// isolatedVariable makes this program an isolated rank. Its value is the rank.
const isolatedVariable = "SYMMEM_TEST_ALONE"

// isolatedRanks is the number of isolated ranks.
const isolatedRanks = 2

// runIsolatedRank runs this process as an isolated rank and returns its exit status. TestMain calls
// it if isolatedVariable is set.
func runIsolatedRank() int {
	if err := sumInIsolation(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return 0
}

// sumInIsolation computes a sum with the other isolated rank, checks it and prints the reason.
func sumInIsolation(ctx context.Context) error {
	rankNumber, err := strconv.Atoi(os.Getenv(isolatedVariable))
	if err != nil {
		return err
	}

	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: rankNumber, Size: isolatedRanks, Store: os.Getenv(storeVariable),
		Path: symmem.PathDirect, Timeout: time.Minute,
	}))
	if err != nil {
		return err
	}
	defer rt.Close() // an error does not matter, because the process ends
	reason, err := explainMissingDirectPath(rt)
	if err != nil {
		return err
	}

	if err := symmetricSum(ctx, rt, rt.World()); err != nil {
		return err
	}

	if n := rt.World().Stats().Paths["direct"]; n != 0 {
		return fmt.Errorf("%d collectives took the direct path, want 0", n)
	}

	fmt.Println(reason)
	return nil
}

// explainMissingDirectPath returns the reason for an all-reduce of 1024 elements.
func explainMissingDirectPath(rt *symmem.Runtime) (string, error) {
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: 2 * mib})
	if err != nil {
		return "", err
	}

	const count, elementBytes = 1024, 4
	b, err := p.Alloc(count * elementBytes)
	if err != nil {
		return "", err
	}

	m := b.Memory()
	explanation, err := rt.World().Explain(symmem.OpAllReduce, m, m, count, symmem.Float32)
	if err != nil {
		return "", err
	}

	_, reason, _ := strings.Cut(explanation.Why, "; not direct: ")
	return reason, nil
}

// TestIsolatedGPUsExplainMissingDirectPath starts two isolated ranks. Their sum must be right on
// another path than the direct one, and both must print the same reason.
func TestIsolatedGPUsExplainMissingDirectPath(t *testing.T) {
	runRanks(t, isolatedRanks, symmem.Options{}, func(r *rank) { // skips with fewer than two GPUs
		if r.Device().Addressable {
			r.skip("the backend has no GPUs", symmem.ErrUnsupported)
		}
	})
	gpus := []string{"0", "1"} // by rank
	if visible := os.Getenv("CUDA_VISIBLE_DEVICES"); visible != "" {
		gpus = strings.Split(visible, ",")
	}

	store := "unix:@symmem-test-" + rand.Text() // where the ranks find each other
	var processes []*exec.Cmd
	for rankNumber := range isolatedRanks {
		processes = append(processes, startIsolatedRank(t, rankNumber, store, gpus[rankNumber]))
	}

	var outputs []string // by rank
	for rankNumber, c := range processes {
		err := c.Wait()
		output := c.Stdout.(*bytes.Buffer).String()
		const want = "this process cannot see GPU"
		if err != nil || !strings.Contains(output, want) {
			t.Errorf("rank %d: got error %v and output %q, want output that contains %q", rankNumber,
				err, output, want)
		}

		outputs = append(outputs, output)
	}

	if outputs[0] != outputs[1] {
		t.Errorf("got the outputs %q, want the same one on both ranks", outputs)
	}
}

// startIsolatedRank starts this program as an isolated rank. The Stdout of the result is a
// *bytes.Buffer, which collects the output and the errors.
func startIsolatedRank(t *testing.T, rankNumber int, store, gpu string) *exec.Cmd {
	t.Helper()
	c := systest.Command(t, systest.Patience, os.Args[0])
	c.Env = append(os.Environ(), storeVariable+"="+store,
		isolatedVariable+"="+strconv.Itoa(rankNumber), "CUDA_VISIBLE_DEVICES="+gpu)
	output := &bytes.Buffer{}
	c.Stdout = output
	c.Stderr = output
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}

	return c
}
