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

// fakeManager is the process manager of an MPI job. It speaks PMI-1, a protocol of lines, with
// ranks over socket pairs. Ranks exchange values with put and get, and meet at a barrier.
type fakeManager struct {
	mu      sync.Mutex
	values  map[string]string // by name of the key-value space and key; guarded by mu
	barrier sync.WaitGroup    // ranks that have not arrived at the barrier
}

// serve answers a rank until its connection is closed, and returns the commands that it sent.
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

// answer returns the answer to a command. It blocks at a barrier.
func (m *fakeManager) answer(fields map[string]string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch fields["cmd"] {
	case "init":
		return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
	case "get_maxes":
		return "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"
	case "get_my_kvsname":
		return "cmd=my_kvsname kvsname=kvs_1"
	case "put":
		m.values[fields["kvsname"]+fields["key"]] = fields["value"]
		return "cmd=put_result rc=0 msg=success"
	case "barrier_in":
		m.barrier.Done()
		m.mu.Unlock() // so that other ranks can arrive
		m.barrier.Wait()
		m.mu.Lock()
		return "cmd=barrier_out"
	case "get":
		return "cmd=get_result rc=0 msg=success value=" + m.values[fields["kvsname"]+fields["key"]]
	case "finalize":
		return "cmd=finalize_ack"
	}

	return "cmd=unknown rc=-1"
}

// socketPair returns two connected sockets: the manager's end as a connection, and the rank's end
// as a descriptor, like the one that a process manager passes in PMI_FD.
func socketPair(t *testing.T) (net.Conn, int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}

	file := os.NewFile(uintptr(fds[0]), "manager")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}

	rankFD := fds[1]
	t.Cleanup(func() {
		pmiResults.Delete(rankFD) // Another test may get the same descriptor.
		syscall.Close(rankFD)
	})
	return conn, rankFD
}

// TestRanksConnectByPMI connects three ranks twice. Rank 0 puts the endpoint of its store, and the
// others get it. The second time, they must use the same endpoint without PMI, because a rank may
// use PMI only once.
func TestRanksConnectByPMI(t *testing.T) {
	const size = 3
	m := &fakeManager{values: map[string]string{}}
	m.barrier.Add(size)
	worlds := make([]World, size)
	var managers sync.WaitGroup
	for rank := range worlds {
		conn, fd := socketPair(t)
		worlds[rank] = World{
			Rank: rank, Size: size, LocalRank: rank, LocalSize: size, Source: SourceMPICH,
			Route: Route{Kind: RoutePMI, FD: fd},
		}
		managers.Go(func() {
			commands, err := m.serve(conn)
			want := "init get_maxes get_my_kvsname barrier_in get finalize"
			if rank == 0 {
				want = "init get_maxes get_my_kvsname put barrier_in get finalize"
			}

			if got := strings.Join(commands, " "); got != want || err != nil {
				t.Errorf("rank %d: commands = %q, %v; want %q", rank, got, err, want)
			}
		})
	}

	for range 2 {
		connectAndClose(t, worlds)
	}

	for rank := range worlds { // ends serve
		_ = syscall.Shutdown(worlds[rank].Route.FD, syscall.SHUT_RDWR)
	}

	managers.Wait()
}

// TestPMIProtocolViolations lets the manager send an answer before it has read any command, and
// close its end. The error of the exchange must contain want.
func TestPMIProtocolViolations(t *testing.T) {
	const initReply = "cmd=response_to_init rc=0\n"
	rows := map[string]struct{ answer, want string }{
		"closed connection":        {"", "unexpected EOF"},
		"error reply":              {"cmd=response_to_init rc=-1 msg=no\n", `rc="-1" msg="no"`},
		"reply to another command": {"cmd=maxes rc=0\n", "init got the reply"},
		"field without a name":     {"cmd=response_to_init ok\n", `invalid field "ok"`},
		"duplicate field":          {"cmd=response_to_init rc=0 rc=0\n", `invalid field "rc=0"`},
		"keys are too short":       {initReply + "cmd=maxes keylen_max=8 vallen_max=64\n", "keylen_max"},
		"missing limits":           {initReply + "cmd=maxes\n", `keylen_max is ""`},
		"huge line":                {strings.Repeat("x", pmiLineBytes+1), "buffer full"},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			conn, fd := socketPair(t)
			go func() {
				_, _ = conn.Write([]byte(r.answer))
				_ = conn.(*net.UnixConn).CloseWrite()
			}()
			defer conn.Close()
			const isLeader = true // as on rank 0
			_, err := pmiEndpoint(testContext(t), fd, isLeader)
			if err == nil || !strings.Contains(err.Error(), r.want) {
				t.Fatalf("pmiEndpoint = %v, want an error that contains %q", err, r.want)
			}
		})
	}
}

// TestPMIExchangeStopsWhenContextEnds uses a manager that never answers. When the context is
// canceled, the exchange must stop with its cause. The test also passes a closed descriptor.
func TestPMIExchangeStopsWhenContextEnds(t *testing.T) {
	conn, fd := socketPair(t)
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(testContext(t))
	cause := errors.New("canceled by the test")
	go func() {
		// After the client has sent its first line, it waits for the answer.
		_, _ = bufio.NewReader(conn).ReadString('\n')
		cancel(cause)
	}()
	const isLeader, closedFD = false, 1 << 20
	if _, err := pmiEndpoint(ctx, fd, isLeader); !errors.Is(err, cause) {
		t.Fatalf("pmiEndpoint = %v, want %v", err, cause)
	}

	if _, err := pmiEndpoint(ctx, closedFD, isLeader); !errors.Is(err, syscall.EBADF) {
		t.Fatalf("pmiEndpoint of a closed descriptor = %v; want EBADF", err)
	}
}
