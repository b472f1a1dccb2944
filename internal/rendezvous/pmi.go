package rendezvous

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// pmi is a client of PMI-1, the protocol between MPICH's process manager and the processes that it
// starts. Each message is a line of "name=value" fields, and the first field is the command (see
// src/pmi/src/pmi_v1.c in MPICH).
type pmi struct {
	conn net.Conn
	r    *bufio.Reader
}

var errPMI = errors.New("PMI failed")

const (
	pmiLineBytes   = 4096
	pmiKey         = "symmem-store"
	pmiNeededBytes = 60
)

// pmiResult caches the endpoint that was obtained over one descriptor. A program may call Connect
// several times, but a descriptor allows only one exchange.
type pmiResult struct {
	sync.Mutex
	known    bool
	endpoint Endpoint
}

var pmiResults sync.Map

// pmiEndpoint returns the endpoint that rank 0, the leader, chooses for all ranks. It leaves the
// descriptor open.
func pmiEndpoint(ctx context.Context, fd int, leader bool) (Endpoint, error) {
	entry, _ := pmiResults.LoadOrStore(fd, &pmiResult{})
	result := entry.(*pmiResult)
	result.Lock()
	defer result.Unlock()
	if result.known {
		return result.endpoint, nil
	}
	conn, err := pmiConn(fd)
	if err != nil {
		return Endpoint{}, err
	}
	defer conn.Close()
	endpoint, err := pmiExchange(ctx, conn, leader)
	if err != nil {
		return Endpoint{}, fmt.Errorf("finding the store by PMI: %w", err)
	}
	result.endpoint, result.known = endpoint, true
	return endpoint, nil
}

func pmiExchange(ctx context.Context, conn net.Conn, leader bool) (Endpoint, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(pastDeadline) })()
	p := &pmi{conn: conn, r: bufio.NewReaderSize(conn, pmiLineBytes)}
	endpoint, err := p.exchange(leader)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return endpoint, err
}

func pmiConn(fd int) (net.Conn, error) {
	copied, err := syscall.Dup(fd)
	if err != nil {
		return nil, fmt.Errorf("using descriptor %d of PMI_FD: %w", fd, err)
	}
	syscall.CloseOnExec(copied)
	file := os.NewFile(uintptr(copied), "PMI_FD")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("using descriptor %d of PMI_FD: %w", fd, err)
	}
	return conn, nil
}

func (p *pmi) exchange(leader bool) (Endpoint, error) {
	kvs, err := p.begin()
	if err != nil {
		return Endpoint{}, err
	}
	if leader {
		value := rand.Text() + "-" + rand.Text()
		put := fmt.Sprintf("put kvsname=%s key=%s value=%s", kvs, pmiKey, value)
		if _, err := p.request(put, "put_result"); err != nil {
			return Endpoint{}, err
		}
	}
	if _, err := p.request("barrier_in", "barrier_out"); err != nil {
		return Endpoint{}, err
	}
	got, err := p.request(fmt.Sprintf("get kvsname=%s key=%s", kvs, pmiKey), "get_result")
	if err != nil {
		return Endpoint{}, err
	}
	name, token, ok := strings.Cut(got["value"], "-")
	if !ok || name == "" || token == "" {
		return Endpoint{}, fmt.Errorf("%w: rank 0 stored %q", errPMI, got["value"])
	}
	_, err = p.request("finalize", "finalize_ack")
	return Endpoint{Address: unixScheme + "@symmem-" + name, Token: Token(token)}, err
}

func (p *pmi) begin() (kvs string, err error) {
	if _, err := p.request("init pmi_version=1 pmi_subversion=1", "response_to_init"); err != nil {
		return "", err
	}
	maxes, err := p.request("get_maxes", "maxes")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"keylen_max", "vallen_max"} {
		if n, err := strconv.Atoi(maxes[name]); err != nil || n < pmiNeededBytes {
			return "", fmt.Errorf("%w: %s is %q, want at least %d",
				errPMI, name, maxes[name], pmiNeededBytes)
		}
	}
	space, err := p.request("get_my_kvsname", "my_kvsname")
	if err != nil {
		return "", err
	}
	if space["kvsname"] == "" {
		return "", fmt.Errorf("%w: the process manager returned no key-value space", errPMI)
	}
	return space["kvsname"], nil
}

// request sends one line and returns the fields of the answer. It fails if the answer's command is
// not want, or if the answer contains an rc other than 0.
func (p *pmi) request(line, want string) (map[string]string, error) {
	command, _, _ := strings.Cut(line, " ")
	if _, err := p.conn.Write([]byte("cmd=" + line + "\n")); err != nil {
		return nil, fmt.Errorf("sending %s: %w", command, err)
	}
	answer, err := p.r.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("reading the answer to %s: %w", command, unexpectedEOF(err))
	}
	fields, err := parsePMILine(string(answer))
	if err != nil {
		return nil, err
	}
	if fields["cmd"] != want {
		return nil, fmt.Errorf("%w: %s was answered with %q", errPMI, command, answer)
	}
	if rc, ok := fields["rc"]; ok && rc != "0" {
		return nil, fmt.Errorf("%w: %s was refused: rc=%q msg=%q",
			errPMI, command, rc, fields["msg"])
	}
	return fields, nil
}

// parsePMILine parses a line of "name=value" fields, in which no name may occur twice.
func parsePMILine(line string) (map[string]string, error) {
	fields := map[string]string{}
	for field := range strings.FieldsSeq(line) {
		name, value, ok := strings.Cut(field, "=")
		if _, duplicate := fields[name]; !ok || name == "" || duplicate {
			return nil, fmt.Errorf("%w: word %q of line %q", errPMI, field, line)
		}
		fields[name] = value
	}
	return fields, nil
}
