package sys

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SilenceLimit is the time after which a TCP connection fails if the other machine is silent, for
// example after a power failure. By default, the kernel waits for minutes.
const SilenceLimit = 5 * time.Second

// probeInterval is the time between keep-alive probes, which the kernel sends on idle connections.
const probeInterval = time.Second

var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     probeInterval,                     // before the first probe
	Interval: probeInterval,                     // before each later probe
	Count:    int(SilenceLimit / probeInterval), // unanswered probes that end the connection
}

// Dialer returns a dialer for TCP and Unix sockets. It applies SilenceLimit to TCP connections.
func Dialer() *net.Dialer {
	control := func(network, _ string, conn syscall.RawConn) error {
		isTCP := strings.HasPrefix(network, "tcp") // such as "tcp4"
		if !isTCP {
			return nil
		}

		return limitSilence(conn)
	}
	return &net.Dialer{KeepAliveConfig: keepAlive, Control: control}
}

// DetectSilence applies SilenceLimit to a TCP connection. It ignores other connections.
func DetectSilence(conn net.Conn) error {
	tcpConn, isTCP := conn.(*net.TCPConn)
	if !isTCP {
		return nil
	}

	if err := tcpConn.SetKeepAliveConfig(keepAlive); err != nil {
		return err
	}

	rawConn, err := tcpConn.SyscallConn()
	if err != nil {
		return err
	}

	return limitSilence(rawConn)
}

// limitSilence makes a connection fail if sent data is not acknowledged within SilenceLimit.
func limitSilence(conn syscall.RawConn) error {
	const optionRTOMax = 44 // TCP_RTO_MAX_MS
	limitMs := int(SilenceLimit / time.Millisecond)
	retransmitMs := int(probeInterval / time.Millisecond)
	var setErr error
	controlErr := conn.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, limitMs)
		// Kernels before 6.15 reject this option: they retransmit less often.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, optionRTOMax, retransmitMs)
	})
	return errors.Join(controlErr, os.NewSyscallError("setsockopt", setErr))
}

// Silence describes whether the machine at the other end of a TCP connection answers.
type Silence int

// States of the other machine.
const (
	Answering Silence = iota
	Suspect           // The answer to the last probe is late.
	Silent            // There has been no answer for about SilenceLimit.
)

const (
	assumedMaxRoundTrip = probeInterval / 2
	suspectAfter        = probeInterval + assumedMaxRoundTrip
	silentAfter         = SilenceLimit - assumedMaxRoundTrip
)

// SilenceOf returns the state of the machine at the other end of a connection. It returns Answering
// if the connection is closed or does not use TCP.
func SilenceOf(conn net.Conn) Silence {
	tcpConn, isTCP := conn.(*net.TCPConn)
	if !isTCP {
		return Answering
	}

	rawConn, err := tcpConn.SyscallConn()
	if err != nil {
		return Answering
	}

	var sinceAnswer time.Duration
	controlErr := rawConn.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			sinceAnswer = time.Duration(info.Last_ack_recv) * time.Millisecond
		}
	})
	switch {
	case controlErr != nil || sinceAnswer < suspectAfter:
		return Answering
	case sinceAnswer < silentAfter:
		return Suspect
	default:
		return Silent
	}
}

// IsSilence reports whether err means that the other machine did not answer.
func IsSilence(err error) bool {
	return errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTDOWN)
}
