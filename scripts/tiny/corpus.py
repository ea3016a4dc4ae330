#!/usr/bin/env python3
"""The synthetic chat corpus of the tiny model. Deterministic: the same seed gives the same text.

Every document is a conversation in the GLM-5 chat format. Its facts are closed-world and checkable, so that a test can tell a right
answer from a fluent wrong one; copying, recall across turns and counting exercise attention itself.

Functions draw from the generator r in a fixed order; changing that order changes the corpus. Run as a program it prints samples.
"""
import random
import sys

from vocabulary import (CAPITALS, DAYS, ELEMENTS, GLOSSARY, KINDS, MONTHS, NAMES, ONES, OPPOSITES, SMALL_TALK, TENS, TRANSLATIONS,
                        WORDS, YOUNG)

SYSTEM_PROMPTS = [  # text, style of the answers
    ('Answer in one word.', 'one'),
    ('Be brief. One word only.', 'one'),
    ('Answer in capital letters.', 'upper'),
    ('You are a helpful assistant.', None),
    ('Answer the question.', None),
    ('You are a pirate.', 'pirate'),
]


def spell(n):
    """A number below 100 in words."""
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + ('-' + ONES[n % 10] if n % 10 else '')


def article(word):
    return ('an ' if word[0] in 'aeiou' else 'a ') + word


def capital(text):
    return text[:1].upper() + text[1:]


# Questions. Each returns (question, full answer, one-word answer or None, reasoning).

def ask_capital(r):
    country = r.choice(list(CAPITALS))
    city = CAPITALS[country]
    if r.random() < .75:
        question = r.choice(['What is the capital of {}?', 'Tell me the capital of {}.', 'capital of {}?',
                             'Which city is the capital of {}?', 'Name the capital of {}.']).format(country)
        return question, f'The capital of {country} is {city}.', city, f'The question asks for the capital of {country}. It is {city}.'
    question = r.choice(['{} is the capital of which country?', 'Which country has {} as its capital?']).format(city)
    return question, f'{city} is the capital of {country}.', country, f'{city} is a capital city. It belongs to {country}.'


def ask_element(r):
    number = r.randrange(len(ELEMENTS))
    element, symbol = ELEMENTS[number]
    form = r.randrange(3)
    if form == 0:
        return (f'What is the chemical symbol of {element}?', f'The chemical symbol of {element} is {symbol}.', symbol,
                f'{capital(element)} is written {symbol}.')
    if form == 1:
        return (f'Which element has the symbol {symbol}?', f'{symbol} is the symbol of {element}.', capital(element),
                f'{symbol} stands for {element}.')
    return (f'What is the atomic number of {element}?', f'The atomic number of {element} is {number + 1}.', str(number + 1),
            f'{capital(element)} is element number {number + 1}.')


def ask_sum(r):
    a, b = r.randrange(100), r.randrange(100)
    op = r.choice('++-*')
    if op == '*':
        a, b = r.randrange(13), r.randrange(13)
    if op == '-' and b > a:
        a, b = b, a
    value = {'+': a + b, '-': a - b, '*': a * b}[op]
    name = {'+': 'plus', '-': 'minus', '*': 'times'}[op]
    question = r.choice([f'What is {a} {op} {b}?', f'{a} {op} {b} = ?', f'What is {a} {name} {b}?', f'Calculate {a} {op} {b}.'])
    reasoning = f'{a} {name} {b} is {value}.'
    if op == '+':
        ones, tens = a % 10 + b % 10, a // 10 + b // 10
        reasoning = (f'Ones: {a % 10} + {b % 10} = {ones}. Tens: {a // 10} + {b // 10} = {tens}. '
                     f'Total {tens * 10} + {ones} = {value}.')
    return question, f'{a} {name} {b} is {value}.', str(value), reasoning


def ask_opposite(r):
    a, b = r.choice(OPPOSITES)
    if r.random() < .5 and 'light' not in (a, b):  # light has two opposites
        a, b = b, a
    question = r.choice(['What is the opposite of {}?', 'Give me the opposite of {}.', 'opposite of {}?']).format(a)
    return question, f'The opposite of {a} is {b}.', capital(b), f'{capital(a)} and {b} are opposites.'


def ask_translation(r):
    row = r.choice(TRANSLATIONS)
    word, column = row[0], r.randrange(3)
    language = ['French', 'Spanish', 'German'][column]
    foreign = row[1 + column]
    question = r.choice([f'How do you say "{word}" in {language}?', f'Translate "{word}" into {language}.',
                         f'What is "{word}" in {language}?'])
    return question, f'"{word}" in {language} is "{foreign}".', foreign, f'The {language} word for {word} is {foreign}.'


def ask_young(r):
    animal, young, sound = r.choice(YOUNG)
    if r.random() < .5:
        return (f'What do you call a young {animal}?', f'A young {animal} is called {article(young)}.', capital(young),
                f'The young of a {animal} is {article(young)}.')
    answer = f'{capital(article(animal))} {sound}.'
    return f'What sound does {article(animal)} make?', answer, capital(sound), answer


def ask_day(r):
    i, step = r.randrange(7), r.choice([1, -1])
    day, where = DAYS[(i + step) % 7], 'after' if step == 1 else 'before'
    return (f'What day comes {where} {DAYS[i]}?', f'{day} comes {where} {DAYS[i]}.', day, f'The day {where} {DAYS[i]} is {day}.')


def ask_month(r):
    i, step = r.randrange(12), r.choice([1, -1])
    month, where = MONTHS[(i + step) % 12], 'after' if step == 1 else 'before'
    if r.random() < .3:
        return (f'Which month is number {i + 1}?', f'Month number {i + 1} is {MONTHS[i]}.', MONTHS[i],
                f'Counting from January, number {i + 1} is {MONTHS[i]}.')
    return (f'What month comes {where} {MONTHS[i]}?', f'{month} comes {where} {MONTHS[i]}.', month,
            f'The month {where} {MONTHS[i]} is {month}.')


def ask_term(r):
    term, meaning = r.choice(GLOSSARY)
    question = r.choice([f'What is {term}?', f'Explain {term}.', f'Can you explain {term}?', f'What do you mean by {term}?',
                         f'Tell me about {term}.'])
    return question, meaning, None, f'The user asks about {term}. I will define it.'


def ask_larger(r):
    a, b = r.randrange(100), r.randrange(100)
    if a == b:
        b += 1
    high, low = max(a, b), min(a, b)
    return (f'Which is larger, {a} or {b}?', f'{high} is larger than {low}.', str(high), f'Compare {a} and {b}. The larger one is {high}.')


def ask_number(r):
    n = r.randrange(100)
    if r.random() < .5:
        word = spell(n)
        return f'Write the number {n} in words.', f'{capital(word)}.', capital(word), f'{n} is {word}.'
    parity = 'even' if n % 2 == 0 else 'odd'
    return f'Is {n} even or odd?', f'{n} is {parity}.', capital(parity), f'The last digit of {n} is {n % 10}, so it is {parity}.'


def ask_members(r):
    kind = r.choice(list(KINDS))
    a, b, c = r.sample(KINDS[kind], 3)
    question = r.choice([f'Name three {kind}s.', f'Give me three {kind}s.', f'List three {kind}s.'])
    return question, f'Three {kind}s are {a}, {b} and {c}.', None, f'I need three {kind}s: {a}, {b}, {c}.'


def ask_kind(r):
    kind = r.choice(list(KINDS))
    other = r.choice([k for k in KINDS if k != kind])
    word = r.choice(KINDS[kind])
    yes = r.random() < .5
    asked = kind if yes else other
    if word in KINDS[asked]:  # orange is a fruit and a colour
        yes = True
    answer = f'Yes, {word} is {article(asked)}.' if yes else f'No, {word} is not {article(asked)}. It is {article(kind)}.'
    return f'Is {word} {article(asked)}?', answer, 'Yes' if yes else 'No', f'{capital(word)} is {article(kind)}.'


# Repeated entries are asked more often.
QUESTIONS = [ask_capital] * 3 + [ask_element] + [ask_sum] * 3 + [ask_opposite] + [ask_translation] * 2 + [
    ask_young, ask_day, ask_month] + [ask_term] * 3 + [ask_larger, ask_number, ask_members, ask_kind]


def fact(r):
    return QUESTIONS[r.randrange(len(QUESTIONS))](r)


def copying(r):
    """(question, answer) about a list that stands in the question, or counting."""
    n = r.randint(2, 9)
    words = [r.choice(WORDS) for _ in range(n)]
    form = r.randrange(6)
    listed = ', '.join(words)
    if form == 0:
        return f'Repeat after me: {" ".join(words)}', ' '.join(words)
    if form == 1:
        words = words[:5]
        return f'Say these words in reverse order: {" ".join(words)}', ' '.join(words[::-1])
    if form == 2:
        return f'What is the first word of this list: {listed}?', f'The first word is {words[0]}.'
    if form == 3:
        return f'What is the last word of this list: {listed}?', f'The last word is {words[-1]}.'
    if form == 4:
        return f'How many words are in this list: {listed}?', f'There are {n} words in the list.'
    start, count = r.randrange(60), r.randint(3, 12)
    return f'Count from {start} to {start + count}.', ', '.join(str(start + i) for i in range(count + 1)) + '.'


def story(r):
    """(request, story)"""
    name, friend = r.sample(NAMES, 2)
    animal = r.choice(KINDS['animal'])
    thing = r.choice(KINDS['fruit'] + KINDS['tool'] + KINDS['instrument'])
    colour = r.choice(KINDS['colour'])
    vehicle = r.choice(KINDS['vehicle'])
    day = r.choice(DAYS)
    place = r.choice(['the river', 'the forest', 'the market', 'the old bridge', 'the school', 'the lake', 'the hill', 'the harbour'])
    mood = r.choice(['happy', 'curious', 'tired', 'hungry', 'brave', 'quiet'])
    event = r.choice([f'found {article(colour)} {thing}', f'saw {article(colour)} {vehicle}', f'met {article(animal)}',
                      f'lost {article(thing)}'])
    middle = r.choice([f'"Look!" said {name}. "It is {colour}!"', f'{friend} laughed and said, "What a strange day."',
                       f'The {animal} looked at them and did not move.', 'It started to rain, and they ran under a tree.'])
    shared = article(r.choice(KINDS['fruit']))
    action = r.choice([f'They took the {vehicle} home', f'They gave the {thing} to the {animal}', f'They shared {shared}',
                       'They told everyone in the village'])
    end = r.choice(['and everyone was happy.', 'and they never forgot that day.', 'and slept well that night.',
                    'and became good friends.', 'and promised to come back.'])
    text = (f'One {day}, {name} went to {place} with {friend}. {name} was {mood}. Near {place} they {event}. {middle} '
            f'{action} {end}')
    request = r.choice(['Tell me a story.', 'Tell me a short story.', f'Tell me a story about {name}.',
                        f'Tell me a story about {name} and {friend}.', f'Write a story about {name} and {article(animal)}.'])
    if animal not in text and f'{article(animal)}.' in request:
        text += f' The {animal} watched them go.'
    return request, text


def turn(r, style, think):
    """(user, assistant with its thinking part)"""
    x = r.random()
    if x < .62:
        question, answer, short, reasoning = fact(r)
        if style == 'one' and short:
            answer = short
    elif x < .80:
        (question, answer), reasoning = copying(r), 'I have to follow the list carefully.'
    elif x < .90:
        (question, answer), reasoning = story(r), 'The user wants a story.'
    else:
        (question, answer), reasoning = r.choice(SMALL_TALK), 'This is small talk.'
    if style == 'upper':
        answer = answer.upper()
    if style == 'pirate':
        answer = 'Arr! ' + answer
    if r.random() < .08:
        question = question.lower()
    if r.random() < .06:
        question = question.rstrip('?.!')
    return question, (f'<think>{reasoning}</think>' if think else '</think>') + answer


def recall(r):
    """Turns that end in a question about the first one."""
    name, colour, number = r.choice(NAMES), r.choice(KINDS['colour']), r.randrange(100)
    statement, questions, reply = r.choice([
        (f'My name is {name}.',
         [('What is my name?', f'Your name is {name}.'), ('Do you remember my name?', f'Yes, your name is {name}.')],
         f'Hello {name}, nice to meet you.'),
        (f'My favourite colour is {colour}.',
         [('What is my favourite colour?', f'Your favourite colour is {colour}.')],
         'Nice to know! I will remember it.'),
        (f'Remember the number {number}.',
         [('Which number did I give you?', f'You gave me the number {number}.'), ('What was the number?', f'The number was {number}.')],
         f'I will remember the number {number}.')])
    turns = [(statement, reply)]
    turns += [turn(r, None, False) for _ in range(r.randrange(3))]
    return turns + [r.choice(questions)]


def document(r):
    system, style = r.choice(SYSTEM_PROMPTS) if r.random() < .25 else (None, None)
    think = r.random() < .3
    text = '[gMASK]<sop>' + (f'<|system|>{system}' if system else '')
    if r.random() < .15 and style is None:
        turns = recall(r)
    else:
        turns = [turn(r, style, think) for _ in range(r.choice([1, 1, 1, 2, 2, 3, 4]))]
    for i, (question, answer) in enumerate(turns):
        if not answer.startswith(('<think>', '</think>')):
            answer = ('<think>I look back in the conversation.</think>' if think else '</think>') + answer
        if answer.startswith('<think>') and i < len(turns) - 1:  # the chat format drops the thinking of earlier turns
            answer = '</think>' + answer.split('</think>')[1]
        text += f'<|user|>{question}<|assistant|>{answer}'
    return text + '<|endoftext|>'


def corpus(n, seed=1):
    r = random.Random(seed)
    return [document(r) for _ in range(n)]


def exam(n=400, seed=99):
    """Single questions with the exact answer that greedy decoding must give; only kinds of question with one right answer."""
    r = random.Random(seed)
    questions = []
    while len(questions) < n:
        if r.random() < .75:
            question, answer, _, _ = fact(r)
            if not question.startswith(('Name three', 'Give me three', 'List three')):
                questions.append((question, answer))
        else:
            questions.append(copying(r))
    return questions


def main():
    for text in corpus(12):
        print(text, end='\n\n')
    sizes = [len(text) for text in corpus(20000)]
    print(len(sizes), 'documents,', sum(sizes) / len(sizes), 'characters on average', file=sys.stderr)


if __name__ == '__main__':
    main()
