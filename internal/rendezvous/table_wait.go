package rendezvous

import "slices"

// startWait handles a WAIT, which is answered when all keys exist. If they exist already, it
// answers at once. It returns errSecondWait if the client is already waiting.
func (t *table) startWait(from clientID, keys []string) error {
	if t.waiterByClient[from] != nil {
		return errSecondWait
	}

	w := &waiter{client: from, missingKeys: map[string]bool{}}
	for _, key := range keys {
		isRepeated := w.missingKeys[key] // A WAIT may list a key twice.
		if t.isMissing(key) && !isRepeated {
			w.missingKeys[key] = true
			t.waitersByKey[key] = append(t.waitersByKey[key], w)
		}
	}

	if len(w.missingKeys) == 0 {
		t.answer(from, []byte{replyWaitOver})
		return nil
	}

	t.waiterByClient[from] = w
	return nil
}

// wakeWaiters is called when a key has been set. It ends the waits for this key that wait for no
// other missing key.
func (t *table) wakeWaiters(key string) {
	waiters := t.waitersByKey[key]
	delete(t.waitersByKey, key)
	for _, w := range waiters {
		t.removeMissingKey(w, key)
	}
}

// removeMissingKey removes a key that now exists from w.missingKeys. If no other key is missing, it
// ends the wait and answers the client. The caller removes w from t.waitersByKey.
func (t *table) removeMissingKey(w *waiter, key string) {
	delete(w.missingKeys, key)
	if len(w.missingKeys) > 0 {
		return
	}

	delete(t.waiterByClient, w.client)
	t.answer(w.client, []byte{replyWaitOver})
}

// removeWaiter removes w from the waiters for a key.
func (t *table) removeWaiter(w *waiter, key string) {
	isRemoved := func(other *waiter) bool { return other == w }
	remaining := slices.DeleteFunc(t.waitersByKey[key], isRemoved)
	if len(remaining) == 0 {
		delete(t.waitersByKey, key)
	} else {
		t.waitersByKey[key] = remaining
	}
}

// arriveAtBarrier records that a client has arrived at the barrier with the given key. The arrival
// of client number rankCount answers all clients that have arrived. Later arrivals are answered at
// once. It returns errSecondWait if the client is already waiting.
func (t *table) arriveAtBarrier(from clientID, key string, rankCount int64) error {
	if t.waiterByClient[from] != nil {
		return errSecondWait
	}

	b := t.barriers[key]
	if b == nil {
		b = &barrier{}
		t.barriers[key] = b
	}

	b.arrivalCount++
	b.clients = append(b.clients, from)
	t.waiterByClient[from] = &waiter{client: from, barrier: b}
	if b.arrivalCount < rankCount {
		return nil
	}

	for _, client := range b.clients {
		delete(t.waiterByClient, client)
		t.answer(client, []byte{replyWaitOver})
	}

	b.clients = nil
	return nil
}

// endWait forgets the wait of a client that has canceled it or disconnected, without an answer. A
// barrier still counts the client's arrival.
func (t *table) endWait(client clientID) {
	w := t.waiterByClient[client]
	if w == nil {
		return
	}

	delete(t.waiterByClient, client)
	for key := range w.missingKeys {
		t.removeWaiter(w, key)
	}

	if w.barrier != nil {
		isRemoved := func(other clientID) bool { return other == client }
		w.barrier.clients = slices.DeleteFunc(w.barrier.clients, isRemoved)
	}
}
