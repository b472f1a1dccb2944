package rendezvous

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// fakeManager is a process manager of MPI. Rank 0 puts the endpoint of the store under a key. After
// a barrier, all ranks get the value of this key. The protocol, PMI-1, consists of lines: "cmd=get
// kvsname=kvs_1 key=k" has the answer "cmd=get_result rc=0 value=v".
type fakeManager struct {
	barrier sync.WaitGroup // counts the ranks that have not arrived at the barrier

	mu     sync.Mutex
	values map[string]string // by kvsname and key, concatenated; guarded by mu
}

// serve answers the commands of a rank until the connection is closed. It returns these commands.
func (m *fakeManager) serve(conn net.Conn) (commands []string, err error) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		fields, err := parsePMILine(lines.Text())
		if err != nil {
			return commands, err
		}

		commands = append(commands, fields["cmd"])
		if _, err := fmt.Fprintln(conn, m.answer(fields)); err != nil {
			return commands, err
		}
	}

	return commands, lines.Err()
}

// answer returns the answer to a command. It blocks at barrier_in until all ranks have sent it.
func (m *fakeManager) answer(fields map[string]string) string {
	if fields["cmd"] == "barrier_in" {
		m.barrier.Done()
		m.barrier.Wait()
		return "cmd=barrier_out"
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	key := fields["kvsname"] + fields["key"] // meaningless except for put and get
	switch fields["cmd"] {
	case "init":
		return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
	case "get_maxes":
		return "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"
	case "get_my_kvsname":
		return "cmd=my_kvsname kvsname=kvs_1"
	case "put":
		m.values[key] = fields["value"]
		return "cmd=put_result rc=0 msg=success"
	case "get":
		return "cmd=get_result rc=0 msg=success value=" + m.values[key]
	case "finalize":
		return "cmd=finalize_ack"
	}

	return "cmd=unknown rc=-1"
}

// socketPair returns two connected sockets. rankFD is the one that a process manager passes to the
// rank in the environment variable PMI_FD.
func socketPair(t *testing.T) (manager net.Conn, rankFD int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}

	file := os.NewFile(uintptr(fds[0]), "manager")
	defer file.Close()
	manager, err = net.FileConn(file) // duplicates the descriptor
	if err != nil {
		t.Fatal(err)
	}

	rankFD = fds[1]
	t.Cleanup(func() {
		pmiResults.Delete(rankFD) // Another test may get the same descriptor.
		syscall.Close(rankFD)
	})
	return manager, rankFD
}

// PMI allows only one exchange, so a second Connect uses the result of the first.
func TestRanksConnectByPMI(t *testing.T) {
	const size = 3
	m := &fakeManager{values: map[string]string{}}
	m.barrier.Add(size)
	worlds := make([]World, size)
	var servers sync.WaitGroup
	for rank := range worlds {
		conn, fd := socketPair(t)
		worlds[rank] = World{
			Rank: rank, Size: size, LocalRank: rank, LocalSize: size, Source: SourceMPICH,
			Route: Route{Kind: RoutePMI, FD: fd},
		}
		servers.Go(func() { checkCommands(t, m, conn, rank) })
	}

	for range 2 {
		connectAndClose(t, worlds)
	}

	for rank := range worlds {
		// Connect leaves the descriptor open. The shutdown ends fakeManager.serve.
		if err := syscall.Shutdown(worlds[rank].Route.FD, syscall.SHUT_RDWR); err != nil {
			t.Error(err)
		}
	}

	servers.Wait()
}

// checkCommands serves a rank and checks that the rank performs exactly one exchange.
func checkCommands(t *testing.T, m *fakeManager, conn net.Conn, rank int) {
	commands, err := m.serve(conn)
	want := "init get_maxes get_my_kvsname barrier_in get finalize"
	if rank == 0 {
		want = "init get_maxes get_my_kvsname put barrier_in get finalize"
	}

	got := strings.Join(commands, " ")
	if got != want || err != nil {
		t.Errorf("rank %d: commands = %q, %v; want %q", rank, got, err, want)
	}
}

func TestPMIProtocolViolations(t *testing.T) {
	const initReply = "cmd=response_to_init rc=0\n"
	for name, c := range map[string]struct {
		answers   string // all lines of the manager, sent before any request
		wantError string // part of the error
	}{
		"closed connection": {answers: "", wantError: "unexpected EOF"},
		"error reply": {
			answers: "cmd=response_to_init rc=-1 msg=no\n", wantError: `rc="-1" msg="no"`,
		},
		"reply to another command": {
			answers: "cmd=maxes rc=0\n", wantError: "init got the reply",
		},
		"field without a name": {
			answers: "cmd=response_to_init ok\n", wantError: `invalid field "ok"`,
		},
		"duplicate field": {
			answers: "cmd=response_to_init rc=0 rc=0\n", wantError: `invalid field "rc=0"`,
		},
		"keys are too short": {
			answers: initReply + "cmd=maxes keylen_max=8 vallen_max=64\n", wantError: "keylen_max",
		},
		"missing limits": {answers: initReply + "cmd=maxes\n", wantError: `keylen_max is ""`},
		"huge line":      {answers: strings.Repeat("x", pmiLineBytes+1), wantError: "buffer full"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, fd := socketPair(t)
			go func() {
				_, _ = conn.Write([]byte(c.answers))
				_ = conn.(*net.UnixConn).CloseWrite()
			}()
			defer conn.Close()
			const isRank0 = true
			_, err := pmiEndpoint(testContext(t), fd, isRank0)
			if err == nil || !strings.Contains(err.Error(), c.wantError) {
				t.Fatalf("pmiEndpoint = %v, want an error that contains %q", err, c.wantError)
			}
		})
	}
}

func TestPMIExchangeStopsWhenContextEnds(t *testing.T) {
	conn, fd := socketPair(t)
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(testContext(t))
	cause := errors.New("canceled by the test")
	go func() {
		// Cancel when the rank has sent a line and waits for the answer.
		_, _ = bufio.NewReader(conn).ReadString('\n')
		cancel(cause)
	}()
	const isRank0 = false
	_, err := pmiEndpoint(ctx, fd, isRank0)
	if !errors.Is(err, cause) {
		t.Fatalf("pmiEndpoint = %v, want %v", err, cause)
	}

	const closedFD = 1 << 20 // larger than any open descriptor
	_, err = pmiEndpoint(ctx, closedFD, isRank0)
	if !errors.Is(err, syscall.EBADF) {
		t.Fatalf("pmiEndpoint of a closed descriptor = %v; want EBADF", err)
	}
}
