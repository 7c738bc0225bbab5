"""The nouns of the emoji scenes: a picture's file, a name, keywords, and how the thing stands in a scene.

One noun a line: `file | name | keywords | how`. The file is named without its suffix. A name or keyword of an irregular plural
is followed by it after a stroke: `mouse/mice`. Every keyword means one noun alone. `how` may hold:

- `mass`: said without a number, and drawn once (`popcorn`, `scissors`)
- `air`: hangs in the air; without it a thing stands on the ground
- `glow`: shines of itself, so that the night does not dim it
- `crop=0.2`: the lowest fifth of what the picture shows is cut off: water under a ship
"""

TABLE = """
1f412 | monkey | chimp, chimpanzee |
1f98d | gorilla | ape |
1f9a7 | orangutan | |
1f415 | dog | puppy, pup, doggy, hound |
1f43a | wolf/wolves | |
1f98a | fox | |
1f99d | raccoon | racoon |
1f408 | cat | kitten, kitty, pussycat, tabby |
1f408-200d-2b1b | black cat | black kitten |
1f981 | lion | lioness |
1f405 | tiger | |
1f406 | leopard | jaguar |
1face | moose/moose | elk/elk |
1facf | donkey | mule, burro |
1f40e | horse | pony, stallion, mare, foal |
1f984 | unicorn | |
1f993 | zebra | |
1f98c | deer/deer | stag, reindeer/reindeer |
1f402 | ox/oxen | bull |
1f404 | cow | calf/calves |
1f416 | pig | piglet, hog, swine/swine |
1f411 | sheep/sheep | lamb, ewe |
1f410 | goat | kid goat |
1f42a | camel | dromedary |
1f999 | llama | alpaca |
1f992 | giraffe | |
1f418 | elephant | |
1f9a3 | mammoth | woolly mammoth |
1f98f | rhinoceros | rhino |
1f99b | hippopotamus | hippo |
1f401 | mouse/mice | |
1f439 | hamster | gerbil, guinea pig |
1f407 | rabbit | bunny, hare |
1f43f-fe0f | squirrel | chipmunk |
1f9ab | beaver | |
1f994 | hedgehog | porcupine |
1f987 | bat | | air
1f43b | bear | brown bear, grizzly, bear cub |
1f43b-200d-2744-fe0f | polar bear | white bear, ice bear |
1f428 | koala | koala bear |
1f43c | panda | panda bear |
1f9a5 | sloth | |
1f9a6 | otter | |
1f998 | kangaroo | wallaby |
1f983 | turkey | |
1f414 | chicken | hen |
1f413 | rooster | cockerel |
1f424 | chick | baby chick, duckling |
1f426 | bird | songbird, cardinal, robin |
1f427 | penguin | |
1f54a-fe0f | dove | pigeon | air
1f985 | eagle | hawk, falcon | air
1f986 | duck | mallard |
1f9a2 | swan | |
1f989 | owl | owlet |
1fab6 | feather | plume |
1f9a9 | flamingo | |
1f99a | peacock | peafowl |
1f99c | parrot | macaw |
1f426-200d-2b1b | crow | raven, blackbird, black bird |
1fabf | goose/geese | |
1f438 | frog | toad |
1f40a | crocodile | alligator, croc |
1f422 | turtle | tortoise |
1f98e | lizard | gecko, salamander, newt |
1f40d | snake | serpent, cobra, viper |
1f409 | dragon | |
1f995 | dinosaur | brontosaurus, sauropod, dino |
1f996 | tyrannosaurus | t rex, trex |
1f433 | whale | |
1f42c | dolphin | porpoise |
1f9ad | seal | sea lion |
1f41f | fish/fish | goldfish/goldfish |
1f988 | shark | |
1f419 | octopus | |
1f41a | seashell | shell, conch |
1fabc | jellyfish/jellyfish | |
1f980 | crab | |
1f99e | lobster | crayfish/crayfish |
1f40c | snail | |
1f98b | butterfly | moth | air
1f41b | caterpillar | inchworm |
1f41d | bee | honeybee, bumblebee, wasp | air
1f41e | ladybug | ladybird |
1f577-fe0f | spider | tarantula |
1f982 | scorpion | |
1f490 | bouquet | |
1f338 | cherry blossom | sakura/sakura |
1fab7 | lotus | water lily, lotus flower |
1f339 | rose | red rose |
1f33b | sunflower | |
1f33c | flower | daisy, blossom, white flower |
1f337 | tulip | |
1fab4 | potted plant | houseplant, plant, flowerpot |
1f332 | pine tree | pine, fir, fir tree, evergreen |
1f333 | tree | oak, oak tree |
1f334 | palm tree | palm |
1f335 | cactus/cacti | |
1f340 | clover | four leaf clover, shamrock |
1f341 | maple leaf/maple leaves | |
1f344 | mushroom | toadstool |
1f347 | grapes | grape | mass
1f349 | watermelon | |
1f34a | orange | tangerine, mandarin, clementine |
1f34b | lemon | |
1f34c | banana | |
1f34d | pineapple | |
1f34e | apple | red apple |
1f350 | pear | |
1f351 | peach | apricot, nectarine |
1f352 | cherries | cherry | mass
1f353 | strawberry | |
1fad0 | blueberries | blueberry | mass
1f95d | kiwi | kiwi fruit/kiwi fruit |
1f345 | tomato/tomatoes | |
1f965 | coconut | |
1f951 | avocado | |
1f346 | eggplant | aubergine |
1f955 | carrot | |
1f33d | corn | maize, sweetcorn, ear of corn | mass
1f336-fe0f | chili pepper | chili, chilli/chillies, hot pepper |
1f952 | cucumber | pickle, gherkin |
1f966 | broccoli | | mass
1f35e | bread | toast, loaf of bread, loaf | mass
1f950 | croissant | |
1f968 | pretzel | |
1f95e | pancakes | pancake | mass
1f9c0 | cheese | cheddar | mass
1f969 | steak | meat/meat, beef/beef |
1f354 | hamburger | burger, cheeseburger |
1f35f | french fries | fries, chips | mass
1f355 | pizza | pizza slice, slice of pizza/slices of pizza |
1f32d | hot dog | hotdog, sausage |
1f96a | sandwich | |
1f32e | taco | |
1f95a | egg | |
1f373 | fried egg | frying pan, pan, skillet |
1f957 | salad | green salad |
1f37f | popcorn | | mass
1f9c8 | butter | | mass
1f35a | rice | bowl of rice | mass
1f35c | ramen | noodles, noodle soup | mass
1f35d | spaghetti | pasta | mass
1f363 | sushi | nigiri | mass
1f366 | ice cream | ice cream cone, icecream, gelato |
1f369 | doughnut | donut |
1f36a | cookie | biscuit |
1f382 | cake | birthday cake |
1f9c1 | cupcake | muffin |
1f36b | chocolate | chocolate bar, bar of chocolate | mass
1f36c | candy | sweet, bonbon |
1f36d | lollipop | |
1f36f | honey pot | honey/honeys, honey jar |
1f95b | milk | glass of milk | mass
2615 | coffee | cup of coffee/cups of coffee, coffee cup, espresso |
1fad6 | teapot | kettle |
1f375 | tea | cup of tea/cups of tea, teacup, tea cup |
1f377 | wine glass | wine, glass of wine/glasses of wine, red wine |
1f378 | cocktail | martini |
1f37a | beer | pint of beer/pints of beer, beer mug |
1f964 | soda | cola, soft drink |
1f9cb | bubble tea | boba/boba, milk tea |
1f9ca | ice cube | block of ice/blocks of ice |
1f52a | knife/knives | kitchen knife/kitchen knives |
1f3fa | vase | amphora, urn |
1f30d | globe | earth/earths, world |
1f5fa-fe0f | map | world map |
1f9ed | compass | |
1f30b | volcano/volcanoes | |
26f1-fe0f | beach umbrella | parasol, sunshade |
1f3dd-fe0f | island | desert island, tropical island |
1f3db-fe0f | temple | greek temple, parthenon |
1faa8 | rock | stone, boulder |
1fab5 | log | tree stump, stump, wood/wood |
1f3e0 | house | home, cottage, cabin |
1f3e2 | skyscraper | building, office building |
1f3eb | school | schoolhouse |
1f3ed | factory | |
1f3ef | pagoda | japanese castle |
1f3f0 | castle | palace, fortress |
1f5fc | tower | tokyo tower, eiffel tower |
26ea | church | chapel, cathedral |
1f54c | mosque | |
26e9-fe0f | torii | torii gate, shrine |
26f2 | fountain | |
1f3d5-fe0f | tent | campsite, camp |
1f3a0 | carousel | carousel horse, merry go round |
1f3a1 | ferris wheel | |
1f3a2 | roller coaster | rollercoaster |
1f3aa | circus tent | circus, big top |
1f682 | steam train | locomotive, steam engine, steam locomotive |
1f686 | train | |
1f68b | tram | streetcar |
1f68c | bus | coach |
1f691 | ambulance | |
1f692 | fire truck | fire engine |
1f693 | police car | |
1f695 | taxi | cab |
1f697 | car | automobile, red car |
1f69a | truck | lorry, delivery truck |
1f69c | tractor | |
1f3ce-fe0f | racing car | race car, racecar |
1f3cd-fe0f | motorcycle | motorbike |
1f6f5 | scooter | moped, vespa |
1f9bd | wheelchair | |
1f6b2 | bicycle | bike, cycle |
1f6f9 | skateboard | |
1f6fc | roller skate | rollerskate |
1f6e2-fe0f | barrel | oil drum |
1f6de | wheel | tire, tyre |
1f6a6 | traffic light | stoplight |
2693 | anchor | |
1f6df | lifebuoy | life ring, ring buoy |
26f5 | sailboat | boat, yacht, sailing boat | crop=0.18
1f6f6 | canoe | kayak, rowboat | crop=0.34
1f6a2 | ship | steamer, steamship | crop=0.18
2708-fe0f | airplane | plane, aeroplane, jet | air
1f681 | helicopter | chopper | air
1f6f0-fe0f | satellite | | air
1f680 | rocket | spaceship, rocket ship | air
1f6f8 | ufo | flying saucer | air
1f9f3 | suitcase | luggage/luggage |
231b | hourglass | sandglass |
231a | watch | wristwatch |
23f0 | alarm clock | clock |
1fa90 | planet | saturn/saturns | air
2b50 | star | | air glow
2601-fe0f | cloud | | air
1f329-fe0f | storm cloud | thundercloud, thunderstorm | air
1f308 | rainbow | | air
2602-fe0f | umbrella | |
2744-fe0f | snowflake | | air
26c4 | snowman/snowmen | |
2604-fe0f | comet | meteor, asteroid | air glow
1f525 | fire | flame, campfire, bonfire | glow
1f383 | pumpkin | halloween pumpkin | glow
1f384 | christmas tree | xmas tree |
1f388 | balloon | red balloon | air
1f380 | ribbon | bow |
1f381 | gift | present, gift box |
1f3c6 | trophy | |
26bd | soccer ball | football, ball |
26be | baseball | |
1f3c0 | basketball | |
1f3d0 | volleyball | |
1f3c8 | american football | |
1f3be | tennis racket | racket, tennis/tennis |
1f94a | boxing glove | |
26f8-fe0f | ice skate | skate |
1f6f7 | sled | sledge, sleigh |
1f3af | target | dartboard, bullseye |
1fa80 | yoyo | |
1fa81 | kite | | air
1f52b | water gun | water pistol, squirt gun |
1f52e | crystal ball | |
1fa84 | magic wand | wand |
1f3ae | game controller | gamepad, video game |
1f3b2 | dice/dice | |
1f9e9 | puzzle piece | puzzle, jigsaw |
1f9f8 | teddy bear | teddy |
1fa85 | pinata | |
1faa9 | disco ball | mirror ball |
1fa86 | nesting doll | matryoshka, doll |
265f-fe0f | chess pawn | pawn, chess piece |
1f5bc-fe0f | painting | picture frame |
1f3a8 | palette | paint palette |
1f9f6 | yarn | ball of yarn, wool | mass
1f453 | glasses | spectacles, eyeglasses | mass
1f576-fe0f | sunglasses | shades | mass
1f455 | shirt | t shirt, tshirt |
1f456 | jeans | trousers, pants | mass
1f9e3 | scarf/scarves | |
1f9e4 | gloves | glove | mass
1f9e5 | coat | jacket |
1f9e6 | socks | sock | mass
1f457 | dress | gown |
1f458 | kimono | |
1f45c | handbag | bag |
1f392 | backpack | rucksack, schoolbag |
1f45f | sneaker | shoe, running shoe, trainer |
1f97e | boot | hiking boot |
1f460 | high heel | stiletto |
1f451 | crown | tiara |
1f452 | straw hat | hat, sun hat |
1f3a9 | top hat | |
1f9e2 | cap | baseball cap |
1fa96 | helmet | |
1f48d | ring | diamond ring |
1f48e | diamond | gem, gemstone, jewel |
1f514 | bell | |
1f3a4 | microphone | mic |
1f3a7 | headphones | headset | mass
1f4fb | radio | |
1f3b7 | saxophone | sax |
1f3ba | trumpet | bugle |
1fa97 | accordion | |
1f3b8 | guitar | electric guitar |
1f3b9 | piano | piano keys/piano keys |
1f3bb | violin | fiddle |
1f941 | drum | |
1fa88 | flute | |
1f4f1 | phone | smartphone, mobile phone, cell phone |
260e-fe0f | telephone | |
1f4bb | laptop | |
1f5a5-fe0f | computer | desktop computer, monitor |
2328-fe0f | keyboard | |
1f4fa | television | tv |
1f4f7 | camera | |
1f50d | magnifying glass | magnifier |
1f56f-fe0f | candle | | glow
1f4a1 | light bulb | lightbulb, bulb, lamp | glow
1f526 | flashlight | torch |
1f3ee | lantern | paper lantern, red lantern, red paper lantern | air glow
1f4d5 | book | red book, notebook |
1f4dc | scroll | parchment |
1fa99 | coin | gold coin |
1f4b0 | money bag | money/money, bag of money/bags of money |
2709-fe0f | envelope | letter |
1f4e6 | box | package, parcel, cardboard box |
1f4eb | mailbox | letterbox |
270f-fe0f | pencil | |
1f58c-fe0f | paintbrush | brush |
1f4bc | briefcase | |
2702-fe0f | scissors | | mass
1f512 | lock | padlock |
1f511 | key | |
1f528 | hammer | |
1fa93 | axe | hatchet |
26cf-fe0f | pickaxe | |
1f5e1-fe0f | sword | dagger |
1f4a3 | bomb | |
1f3f9 | bow and arrow/bows and arrows | |
1f6e1-fe0f | shield | |
1f527 | wrench | spanner |
2699-fe0f | gear | cog, cogwheel |
1f9f0 | toolbox | |
1fa9c | ladder | |
1f52c | microscope | |
1f52d | telescope | |
1f6aa | door | |
1f6cf-fe0f | bed | |
1f6cb-fe0f | couch | sofa |
1fa91 | chair | |
1f6bd | toilet | |
1f6c1 | bathtub | bath |
1f9f9 | broom | broomstick |
1f9fa | basket | hamper |
1faa3 | bucket | pail |
1f5ff | moai/moai | easter island statue |
"""
