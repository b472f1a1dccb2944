package handoff

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var token Token
		copy(token[:], rapid.SliceOfN(rapid.Byte(), len(token), len(token)).Draw(t, "token"))
		key := Key{
			Namespace: rapid.Uint64().Draw(t, "namespace"),
			Number:    rapid.Uint32().Draw(t, "number"),
		}
		gotToken, gotKey, err := decodeRequest(encodeRequest(token, key))
		if err != nil || gotToken != token || gotKey != key {
			t.Fatalf("decodeRequest = %v, %+v, %v; want %v, %+v", gotToken, gotKey, err, token, key)
		}
	})
}

func TestDecodeResponseReturnsErrorForStatus(t *testing.T) {
	for name, c := range map[string]struct {
		frame []byte
		want  error
	}{
		"found":                    {encodeResponse(statusFound), nil},
		"unknown key":              {encodeResponse(statusUnknown), ErrUnknownKey},
		"refused":                  {encodeResponse(statusRefused), ErrRefused},
		"unknown status":           {encodeResponse(77), ErrProtocol},
		"wrong protocol ID":        {make([]byte, responseBytes), ErrProtocol},
		"truncated frame":          {encodeResponse(statusFound)[:responseBytes-1], ErrProtocol},
		"frame with an extra byte": {append(encodeResponse(statusFound), 0), ErrProtocol},
		"no frame":                 {nil, ErrProtocol},
	} {
		if err := decodeResponse(c.frame); !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", name, err, c.want)
		}
	}
}

func TestNamespacesOfDifferentNamesDiffer(t *testing.T) {
	seen := map[uint64]string{}
	for _, name := range []string{"", "group/0", "group/1", "group/10", "pool", "group/"} {
		if other, ok := seen[NamespaceOf(name)]; ok {
			t.Errorf("%q and %q have the same namespace", name, other)
		}
		seen[NamespaceOf(name)] = name
	}
	if first, second := NamespaceOf("pool"), NamespaceOf("pool"); first != second {
		t.Errorf("NamespaceOf(\"pool\") = %#x, then %#x; want the same value", first, second)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	good := encodeRequest(Token{1, 2, 3}, Key{Namespace: 4, Number: 5})
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(good, 0))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		token, key, err := decodeRequest(frame)
		if err != nil {
			if !errors.Is(err, ErrProtocol) || token != (Token{}) || key != (Key{}) {
				t.Fatalf("decodeRequest = %v, %+v, %v; want zero values and ErrProtocol", token, key, err)
			}
			return
		}
		if string(encodeRequest(token, key)) != string(frame) {
			t.Fatalf("%x was decoded to a request with a different encoding", frame)
		}
	})
}

func FuzzDecodeResponse(f *testing.F) {
	for _, status := range []uint32{statusFound, statusUnknown, statusRefused, 1 << 31} {
		f.Add(encodeResponse(status))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		err := decodeResponse(frame)
		if err == nil && string(frame) != string(encodeResponse(statusFound)) {
			t.Fatalf("%x was decoded as a successful response", frame)
		}
	})
}
