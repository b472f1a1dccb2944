package symmem_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"symmem"
)

// Variables by which a test tells a process which rank of which world it is.
const (
	victimVariable = "SYMMEM_TEST_VICTIM" // the rank that kills itself
	insideVariable = "SYMMEM_TEST_INSIDE" // what it is doing then
	rankVariable   = "SYMMEM_TEST_RANK"
	storeVariable  = "SYMMEM_TEST_STORE"
)

const (
	lostRanks = 3
	// roundsBefore is how often the ranks do the thing before the victim dies in it.
	roundsBefore = 5
)

// rounds are the things in which a rank dies. Each is done again and again by all ranks.
var rounds = map[string]func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error{
	"a collective": func(ctx context.Context, rt *symmem.Runtime, _ *symmem.Pool) error {
		m := symmem.Host(make([]float32, 1<<20))
		err := rt.World().AllReduce(ctx, m, m, 1<<20, symmem.Float32, symmem.Sum, nil)
		return errors.Join(err, rt.DefaultStream().Synchronize(ctx))
	},
	"a registration": func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		b, err := p.Alloc(8 * mib)
		if err != nil {
			return err
		}
		return errors.Join(p.Register(ctx, rt.World()), b.Free(), p.Trim(ctx, 0))
	},
	"an agreement": func(ctx context.Context, rt *symmem.Runtime, _ *symmem.Pool) error {
		return rt.World().Check(ctx)
	},
}

// testimony is what a rank that survived writes.
type testimony struct {
	Lost []int  `json:"lost"`
	Text string `json:"text"`
}

// beRank is the main function of a rank: it works until a rank is lost, and says what it saw.
func beRank() int {
	number, _ := strconv.Atoi(os.Getenv(rankVariable))
	victim, _ := strconv.Atoi(os.Getenv(victimVariable))
	err := work(number, number == victim)
	var lost *symmem.RankLostError
	if !errors.As(err, &lost) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(testimony{lost.Ranks, err.Error()}); err != nil {
		return 1
	}
	return 0
}

func work(number int, victim bool) error {
	ctx := context.Background()
	rt, err := symmem.Open(ctx, symmem.Options{
		Rank: number, Size: lostRanks, Store: os.Getenv(storeVariable), Timeout: time.Minute,
	})
	if err != nil {
		return err
	}
	defer rt.Close()
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: 8 * mib})
	if err != nil {
		return err
	}
	var done atomic.Int64
	if victim {
		go dieInRound(&done)
	}
	round := rounds[os.Getenv(insideVariable)]
	for {
		if err := round(ctx, rt, p); err != nil {
			return err
		}
		done.Add(1)
	}
}

// dieInRound kills this process as soon as it has done enough rounds, in the middle of a later one.
func dieInRound(done *atomic.Int64) {
	for done.Load() < roundsBefore {
		syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func TestARankThatIsKilledIsNamedWithinSeconds(t *testing.T) {
	for inside := range rounds {
		for _, victim := range []int{0, 2} {
			t.Run(fmt.Sprintf("rank %d in %s", victim, inside), func(t *testing.T) {
				loseRank(t, inside, victim)
			})
		}
	}
	if left := sharedFiles(t); left != "" {
		t.Errorf("left in shared memory: %s", left)
	}
}

// loseRank starts a world as processes and checks what the survivors of the victim's end say.
func loseRank(t *testing.T, inside string, victim int) {
	t.Helper()
	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	for number := range lostRanks {
		processes = append(processes, startRank(t, store, inside, number, victim))
	}
	_ = processes[victim].Wait()
	died := time.Now()
	for number, c := range processes {
		if number == victim {
			continue
		}
		err := c.Wait()
		said := c.Stdout.(*bytes.Buffer).String()
		if err != nil || !strings.Contains(said, fmt.Sprintf(`"lost":[%d]`, victim)) {
			t.Errorf("rank %d: %v: %s", number, err, said)
		}
	}
	if took := time.Since(died); took > 5*time.Second {
		t.Errorf("the others took %v", took)
	}
	if left := remains(t, processes, store); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// startRank starts this program as a rank. Its whole output goes to one buffer.
func startRank(t *testing.T, store, inside string, number, victim int) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), storeVariable+"="+store, insideVariable+"="+inside,
		rankVariable+"="+strconv.Itoa(number), victimVariable+"="+strconv.Itoa(victim))
	out := &bytes.Buffer{}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// remains lists what should have gone with the processes: themselves and their store.
func remains(t *testing.T, processes []*exec.Cmd, store string) string {
	t.Helper()
	var left []string
	for _, c := range processes {
		if err := syscall.Kill(c.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			left = append(left, fmt.Sprintf("process %d", c.Process.Pid))
		}
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	if name := strings.TrimPrefix(store, "unix:"); strings.Contains(string(sockets), name) {
		left = append(left, name)
	}
	return strings.Join(left, ", ")
}

// sharedFiles writes the names of symmem's files in shared memory.
func sharedFiles(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if strings.Contains(e.Name(), "symmem") {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}
