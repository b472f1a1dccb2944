package symmem_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"symmem"
	"symmem/internal/live"
)

// The live view is a web page that shows the state of all ranks.

// watchedVariable is the address of the live view. If it is set, the test binary runs one rank.
const watchedVariable = "SYMMEM_TEST_WATCHED"

const watchedRanks = lostRanks

const noToken = "" // metrics need no access token

// runWatchedRank repeats a barrier until a rank is lost, then waits for the end of stdin.
func runWatchedRank() (exitStatus int) {
	// rankCommand has formatted these integers.
	number, _ := strconv.Atoi(os.Getenv(rankVariable))
	size, _ := strconv.Atoi(os.Getenv(sizeVariable))
	ctx := context.Background()
	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: size, Store: os.Getenv(storeVariable), Timeout: time.Minute,
		HTTP: os.Getenv(watchedVariable),
	}))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	for err == nil {
		err = meetOtherRanks(ctx, rt)
	}

	_, _ = io.Copy(io.Discard, os.Stdin) // an error ends the wait, too
	rt.Close()                           // returns err again
	return 0
}

func meetOtherRanks(ctx context.Context, rt *symmem.Runtime) error {
	if err := rt.World().Barrier(ctx, nil); err != nil {
		return err
	}

	return rt.DefaultStream().Synchronize(ctx)
}

func fetch(address, path, token string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}

	request.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{
		Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true},
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", response.StatusCode, body)
	}

	return string(body), err
}

// answeringRanks lists the ranks without an error in the view.
func answeringRanks(view live.Machine) (ranks []int) {
	for i := range view.Ranks {
		if state := &view.Ranks[i]; state.Error == "" {
			ranks = append(ranks, state.Rank)
		}
	}

	return ranks
}

func unusedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// If the rank that serves the live view is killed, the next rank serves it.
func TestLiveViewSurvivesKilledRanks(t *testing.T) {
	requireRanks(t, watchedRanks)
	useLiveFolder(t) // hides other jobs on this machine
	address := unusedAddress(t)
	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	var inputs []io.Closer
	for number := range watchedRanks {
		c, input := startWatchedRank(t, store, address, number)
		processes = append(processes, c)
		inputs = append(inputs, input)
	}

	const lastRank = watchedRanks - 1
	var token string
	for server := range watchedRanks { // the ranks before server have been killed
		token = awaitView(t, address, server, token)
		checkMetrics(t, address, server)
		if server < lastRank {
			_ = processes[server].Process.Kill()
			_ = processes[server].Wait() // the error says that the process was killed
		}
	}

	_ = inputs[lastRank].Close()
	if err := processes[lastRank].Wait(); err != nil {
		t.Errorf("the last rank failed: %v\n%s", err, processes[lastRank].Stdout)
	}

	if text, err := fetch(address, "/metrics", noToken); err == nil {
		t.Errorf("got metrics %q after all ranks have exited, want an error", text)
	}
}

// awaitView waits until the given rank serves a view of the remaining ranks, and returns the latest
// access token.
func awaitView(
	t *testing.T, address string, server int, previousToken string,
) (token string) {
	t.Helper()
	token = previousToken
	var remaining []int
	for number := server; number < watchedRanks; number++ {
		remaining = append(remaining, number)
	}

	await(t, fmt.Sprintf("rank %d serves ranks %v", server, remaining), func() bool {
		token = latestToken(token)
		text, err := fetch(address, "/debug/symmem", token)
		var view live.Machine
		if err != nil || json.Unmarshal([]byte(text), &view) != nil {
			return false
		}

		anyRankKilled := server > 0
		if anyRankKilled && !strings.Contains(faults(view), "lost") {
			return false // the survivors have not noticed the loss
		}

		return view.ServedBy == server && slices.Equal(answeringRanks(view), remaining)
	})
	return token
}

// checkMetrics requires metrics that show the ranks before server as down, and the others as up.
func checkMetrics(t *testing.T, address string, server int) {
	t.Helper()
	metrics, err := fetch(address, "/metrics", noToken)
	if err != nil {
		t.Errorf("reading the metrics from rank %d: %v", server, err)
		return
	}

	for number := range watchedRanks {
		up := 0
		if number >= server {
			up = 1
		}

		want := fmt.Sprintf("symmem_up{rank=\"%d\"} %d\n", number, up)
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics of rank %d lack %q:\n%.2000s", server, want, metrics)
		}
	}
}

// latestToken returns the access token of the first job that has one, or previous.
func latestToken(previous string) string {
	jobs, _ := live.Jobs(live.Root()) // empty after an error
	for _, job := range jobs {
		if found, err := live.Token(job); err == nil {
			return found
		}
	}

	return previous
}

// startWatchedRank starts a process that exits when a rank has been lost and its input is closed.
func startWatchedRank(
	t *testing.T, store, address string, number int,
) (process *exec.Cmd, input io.Closer) {
	t.Helper()
	const noRound, noVictim = "", -1
	c := rankCommand(
		t, store, noRound, number, watchedRanks, noVictim, watchedVariable+"="+address)
	input, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := c.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		_ = c.Process.Kill() // fails if the process has exited
		_ = c.Wait()
		if t.Failed() {
			t.Logf("rank %d printed %s", number, c.Stdout.(*bytes.Buffer))
		}
	})
	return c, input
}
