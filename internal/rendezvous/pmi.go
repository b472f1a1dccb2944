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

// MPICH's process manager speaks PMI-1, a text protocol, with each rank. Rank 0 puts the name and
// token of its store into a key-value space (kvs). After the barrier, all ranks get them. Requests
// are on the left, and replies on the right. Only rank 0 sends the put:
//
//	cmd=init pmi_version=1 pmi_subversion=1           cmd=response_to_init rc=0
//	cmd=get_maxes                                     cmd=maxes keylen_max=64 vallen_max=1024
//	cmd=get_my_kvsname                                cmd=my_kvsname kvsname=kvs_5
//	cmd=put kvsname=kvs_5 key=symmem-store value=V    cmd=put_result rc=0
//	cmd=barrier_in                                    cmd=barrier_out
//	cmd=get kvsname=kvs_5 key=symmem-store            cmd=get_result rc=0 value=V
//	cmd=finalize                                      cmd=finalize_ack
//
// The protocol is defined by src/pmi/src/pmi_v1.c in MPICH.

// errPMI means that the process manager has sent an error or something unexpected.
var errPMI = errors.New("PMI failed")

const (
	pmiLineBytes   = 4096           // maximum length of a line
	pmiKey         = "symmem-store" // key under which rank 0 stores the endpoint
	pmiNeededBytes = 60             // enough for our key and value
)

// pmiResult caches the endpoint for later calls of Connect, because the exchange ends with a
// finalize and cannot be repeated.
type pmiResult struct {
	sync.Mutex // held during the exchange
	isKnown    bool
	endpoint   Endpoint
}

// pmiResults maps the file descriptor of a connection to its *pmiResult.
var pmiResults sync.Map

// pmiEndpoint returns the endpoint that rank 0 has chosen. All ranks must call pmiEndpoint. The
// file descriptor fd is connected to the process manager, and stays open.
func pmiEndpoint(ctx context.Context, fd int, isRank0 bool) (Endpoint, error) {
	entry, _ := pmiResults.LoadOrStore(fd, &pmiResult{})
	result := entry.(*pmiResult)
	result.Lock()
	defer result.Unlock()
	if result.isKnown {
		return result.endpoint, nil
	}

	conn, err := openPMIConn(fd)
	if err != nil {
		return Endpoint{}, err
	}
	defer conn.Close()
	endpoint, err := exchangeWithContext(ctx, conn, isRank0)
	if err != nil {
		return Endpoint{}, fmt.Errorf("finding the store by PMI: %w", err)
	}

	result.endpoint = endpoint
	result.isKnown = true
	return endpoint, nil
}

// openPMIConn returns a connection that uses a duplicate of fd, so closing it leaves fd open.
func openPMIConn(fd int) (net.Conn, error) {
	duplicate, err := syscall.Dup(fd)
	if err != nil {
		return nil, fmt.Errorf("using descriptor %d of PMI_FD: %w", fd, err)
	}

	syscall.CloseOnExec(duplicate)
	file := os.NewFile(uintptr(duplicate), "PMI_FD")
	defer file.Close()
	conn, err := net.FileConn(file) // uses another duplicate
	if err != nil {
		return nil, fmt.Errorf("using descriptor %d of PMI_FD: %w", fd, err)
	}

	return conn, nil
}

func exchangeWithContext(ctx context.Context, conn net.Conn, isRank0 bool) (Endpoint, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(pastDeadline) // ends reads and writes
	})
	defer stop()
	p := &pmiClient{conn: conn, r: bufio.NewReaderSize(conn, pmiLineBytes)}
	endpoint, err := p.exchangeEndpoint(isRank0)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}

	return endpoint, err
}

// pmiClient sends requests to the process manager.
type pmiClient struct {
	conn net.Conn
	r    *bufio.Reader // reads from conn
}

// exchangeEndpoint returns the endpoint. Rank 0 chooses its name and token at random.
func (p *pmiClient) exchangeEndpoint(isRank0 bool) (Endpoint, error) {
	spaceName, err := p.openSpace()
	if err != nil {
		return Endpoint{}, err
	}

	if isRank0 {
		name, token := rand.Text(), rand.Text()
		value := name + "-" + token
		put := fmt.Sprintf("put kvsname=%s key=%s value=%s", spaceName, pmiKey, value)
		if _, err := p.request(put, "put_result"); err != nil {
			return Endpoint{}, err
		}
	}

	if _, err := p.request("barrier_in", "barrier_out"); err != nil {
		return Endpoint{}, err
	}

	get := fmt.Sprintf("get kvsname=%s key=%s", spaceName, pmiKey)
	reply, err := p.request(get, "get_result")
	if err != nil {
		return Endpoint{}, err
	}

	endpoint, err := parsePMIValue(reply["value"])
	if err != nil {
		return Endpoint{}, err
	}

	_, err = p.request("finalize", "finalize_ack")
	return endpoint, err
}

// parsePMIValue decodes the value of pmiKey, which has the form "name-token".
func parsePMIValue(value string) (Endpoint, error) {
	name, token, _ := strings.Cut(value, "-")
	if name == "" || token == "" {
		return Endpoint{}, fmt.Errorf("%w: rank 0 stored %q", errPMI, value)
	}

	return Endpoint{Address: unixScheme + "@symmem-" + name, Token: Token(token)}, nil
}

// openSpace initializes PMI and returns the name of the job's key-value space.
func (p *pmiClient) openSpace() (spaceName string, err error) {
	if _, err := p.request("init pmi_version=1 pmi_subversion=1", "response_to_init"); err != nil {
		return "", err
	}

	limits, err := p.request("get_maxes", "maxes")
	if err != nil {
		return "", err
	}

	for _, name := range []string{"keylen_max", "vallen_max"} {
		limit, err := strconv.Atoi(limits[name])
		if err != nil || limit < pmiNeededBytes {
			return "", fmt.Errorf("%w: %s is %q, want at least %d",
				errPMI, name, limits[name], pmiNeededBytes)
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

// request sends "cmd=" and a line such as "get_maxes", and returns the fields of the reply. It
// returns an error if the reply is not replyCommand, or has a return code (rc) other than 0.
func (p *pmiClient) request(line, replyCommand string) (map[string]string, error) {
	command, _, _ := strings.Cut(line, " ")
	if _, err := p.conn.Write([]byte("cmd=" + line + "\n")); err != nil {
		return nil, fmt.Errorf("sending %s: %w", command, err)
	}

	reply, err := p.r.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("reading the reply to %s: %w", command, unexpectedEOF(err))
	}

	fields, err := parsePMILine(string(reply))
	if err != nil {
		return nil, err
	}

	if fields["cmd"] != replyCommand {
		return nil, fmt.Errorf("%w: %s got the reply %q", errPMI, command, reply)
	}

	rc, hasRC := fields["rc"]
	if hasRC && rc != "0" {
		return nil, fmt.Errorf("%w: %s got an error: rc=%q msg=%q",
			errPMI, command, rc, fields["msg"])
	}

	return fields, nil
}

// parsePMILine returns the fields of a line by name.
func parsePMILine(line string) (map[string]string, error) {
	fields := map[string]string{}
	for field := range strings.FieldsSeq(line) {
		name, value, hasValue := strings.Cut(field, "=")
		_, isDuplicate := fields[name]
		if !hasValue || name == "" || isDuplicate {
			return nil, fmt.Errorf("%w: invalid field %q in line %q", errPMI, field, line)
		}

		fields[name] = value
	}

	return fields, nil
}
