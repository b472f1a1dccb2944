package symmem_test

import (
	"bytes"
	"cmp"
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

// Some launchers let each rank see only its own GPU, for example CUDA_VISIBLE_DEVICES=1 on rank 1.
// Calls of such isolated ranks do not take the direct path (symmem.PathDirect), because the ranks
// cannot determine how the GPUs are connected.

// isolatedVariable makes this program run as the isolated rank with this number.
const isolatedVariable = "SYMMEM_TEST_ALONE"

const isolatedRanks = 2

func runIsolatedRank() (exitStatus int) {
	if err := sumInIsolation(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return 0
}

// sumInIsolation checks an all-reduce, and prints the reason for not taking the direct path.
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
	defer rt.Close()
	reason, err := whyNotDirect(rt)
	if err != nil {
		return err
	}

	if err := symmetricSum(ctx, rt, rt.World()); err != nil {
		return err
	}

	if calls := rt.World().Stats().Paths["direct"]; calls != 0 {
		return fmt.Errorf("%d collectives took the direct path, want 0", calls)
	}

	fmt.Println(reason)
	return nil
}

func whyNotDirect(rt *symmem.Runtime) (string, error) {
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

	const beforeReason = "; not direct: "
	_, reason, found := strings.Cut(explanation.Why, beforeReason)
	if !found {
		return "", fmt.Errorf("got the explanation %q, want one with %q", explanation.Why, beforeReason)
	}

	return reason, nil
}

func TestIsolatedGPUsExplainMissingDirectPath(t *testing.T) {
	skipWithoutGPUs(t, isolatedRanks)
	gpus := strings.Split(cmp.Or(os.Getenv("CUDA_VISIBLE_DEVICES"), "0,1"), ",") // by rank
	store := "unix:@symmem-test-" + rand.Text()
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
		t.Errorf("got the outputs %q, want the same output on both ranks", outputs)
	}
}

func skipWithoutGPUs(t *testing.T, ranks int) {
	t.Helper()
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("the backend has no GPUs", symmem.ErrUnsupported)
		}
	})
}

// startIsolatedRank starts a process whose Stdout is a *bytes.Buffer.
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
